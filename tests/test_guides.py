"""All examples in the guides are correct."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
NEED = {"lake.md": "pyiceberg"}  # guides of extras, whose examples run where these are there
GUIDES = [path.name for path in sorted(DOCS.glob("*.md")) if "```python\n>>> " in path.read_text()]


def test_there_are_guides() -> None:
    assert {"byte-streams.md", "key-value-tables.md", "shared-state.md"} <= set(GUIDES)


@pytest.mark.parametrize("guide", GUIDES)
def test_the_examples_of_a_guide(guide: str) -> None:
    if guide in NEED:
        pytest.importorskip(NEED[guide])
    blocks = re.findall(r"```python\n(>>> .*?)```", (DOCS / guide).read_text(), re.DOTALL)
    examples = doctest.DocTestParser().get_doctest("\n".join(blocks), {"__name__": "guide"}, guide, guide, 0)
    assert examples.examples
    assert doctest.DocTestRunner().run(examples).failed == 0
