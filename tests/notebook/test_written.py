"""The guide's code runs as described."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import nadi
import nadi.notebook
from nadi import limits
from nadi.client import StreamManager
from nadi.display import ROWS, Displayed
from nadi.model import reports
from nadi.testing import fill_stream

GUIDE = (Path(__file__).parents[2] / "docs" / "notebooks.md").read_text()


def test_the_examples_run(manager: StreamManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("anywidget", "matplotlib"):
        pytest.importorskip(module, reason="needs the extra notebook")
    monkeypatch.chdir(tmp_path)
    manager.create_scope("home")
    tail = fill_stream(manager, "home", "meters", [b"x"])
    manager.slices("home").create("evening", manager.cuts("home", "meters").head(), tail)
    examples = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    assert len(examples) == 3
    exec(compile("\n".join(examples), "notebooks.md", "exec"), {"nadi": nadi, "manager": manager})
    assert (tmp_path / "meters.png").read_bytes().startswith(b"\x89PNG")


def test_the_classes_named_show_themselves() -> None:
    rows = [line.split("|")[1] for line in GUIDE.splitlines() if line.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert len(named) > 12
    for name in named:
        kind = getattr(nadi, name, None) or getattr(nadi.client, name, None) or getattr(reports, name)
        assert callable(kind._repr_html_), name
        assert issubclass(kind, Displayed) or name == "ReaderGroup"


def test_the_numbers_are_those_of_the_limits() -> None:
    words = {
        "at most 200 events": limits.PAGE_BATCH_EVENTS == 200,
        "1 MiB": limits.PAGE_BATCH_BYTES == limits.MIB,
        "64 KiB": limits.PAGE_TEXT_BYTES == 64 * limits.KIB,
        "2 MiB": limits.PAGE_PICTURE_BYTES == 2 * limits.MIB,
        "8 concurrent reads": limits.NOTEBOOK_READERS == 8,
        "60 seconds": limits.NOTEBOOK_SILENCE_S == 60,
        "at most 5 seconds": limits.NOTEBOOK_ASKS_S == 5,
        "at most 100 rows": ROWS == 100,
    }
    text = " ".join(GUIDE.split())
    assert [word for word, holds in words.items() if word not in text or not holds] == []
