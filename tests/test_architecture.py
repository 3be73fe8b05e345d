"""ARCHITECTURE.md stays one page, and the files and functions it names exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "ARCHITECTURE.md").read_text()
STEPS = re.findall(r"^- `([a-z0-9_/]+\.py):([A-Za-z_.]+)`", TEXT, re.MULTILINE)
FILES = sorted({*re.findall(r"`([a-z0-9_/]+\.py)`", TEXT)})


def test_architecture_is_one_page() -> None:
    assert len(TEXT.encode()) <= 8_192
    assert len(STEPS) == 12


@pytest.mark.parametrize("file", FILES)
def test_a_named_file_exists(file: str) -> None:
    assert (ROOT / "src/nadi" / file).exists()


@pytest.mark.parametrize(("file", "name"), STEPS)
def test_a_named_function_exists(file: str, name: str) -> None:
    node: ast.AST = ast.parse((ROOT / "src/nadi" / file).read_text())
    for part in name.split("."):
        kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        node = next(child for child in ast.iter_child_nodes(node) if isinstance(child, kinds) and child.name == part)
