"""The walks in ARCHITECTURE.md: what they name is there, and each is called by what stands above it."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
_LINE = re.compile(r"^( *)- `([a-z0-9_/]+\.py):([A-Za-z_.]+)`")


class Step(NamedTuple):
    depth: int
    file: str
    name: str


def steps() -> list[Step]:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    section = text.partition("## Four walks\n")[2].partition("\n## ")[0]
    found = [_LINE.match(line) for line in section.splitlines() if line.lstrip().startswith("- ")]
    assert all(found), "a step is `file.py:function`"
    return [Step(len(match[1]) // 2, match[2], match[3]) for match in found if match is not None]


@cache
def parsed(file: str) -> ast.Module:
    return ast.parse((ROOT / "src/nadi" / file).read_text())


def function(step: Step) -> ast.AST:
    node: ast.AST = parsed(step.file)
    for name in step.name.split("."):
        kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        node = next(one for one in getattr(node, "body", []) if isinstance(one, kinds) and one.name == name)
    return node


def mentioned(node: ast.AST) -> set[str]:
    """The names of all that a function calls, or hands on to be called."""
    names = {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}
    return names | {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def calls() -> list[tuple[Step, Step]]:
    above: list[Step] = []
    pairs = []
    for step in steps():
        del above[step.depth :]
        assert len(above) == step.depth, f"{step.name} is indented too far"
        if above:
            pairs.append((above[-1], step))
        above.append(step)
    return pairs


def test_there_are_four_walks() -> None:
    assert len(steps()) > 40
    assert sum(step.depth == 0 for step in steps()) >= 4


@pytest.mark.parametrize("step", dict.fromkeys(step._replace(depth=0) for step in steps()), ids=lambda step: step.name)
def test_what_is_named_is_there(step: Step) -> None:
    function(step)


@pytest.mark.parametrize(
    ("caller", "called"), calls(), ids=[f"{caller.name}-{called.name}" for caller, called in calls()]
)
def test_each_calls_the_next(caller: Step, called: Step) -> None:
    assert called.name.rpartition(".")[2] in mentioned(function(caller))
