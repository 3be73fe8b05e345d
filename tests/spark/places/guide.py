"""The examples of docs/spark-clusters.md, as printed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[3]


def examples(language: str, word: str) -> list[str]:
    """Return the examples that contain a word."""
    text = (ROOT / "docs" / "spark-clusters.md").read_text()
    found = [example for example in re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL) if word in example]
    assert found, f"the guide has no {language} with {word}"
    return found


def command(word: str, instead: Mapping[str, str]) -> str:
    """Return the only shell example with that word, with some words replaced, each of which must occur."""
    (example,) = examples("bash", word)
    for old, new in instead.items():
        assert old in example, f"{old} is not in {example}"
        example = example.replace(old, new)
    return example
