"""Display of values in notebooks: complete, escaped, and without requests unless the value is live."""

from __future__ import annotations

import pickle
import re
from datetime import UTC, datetime
from html import unescape
from typing import Any

import pytest

import nadi
import nadi.notebook
from nadi.client import Bookmark, NamedSlice, SegmentRange, StreamManager
from nadi.display import CHARS, ROWS
from nadi.errors import InvalidArgumentError
from nadi.model.streamcut import StreamCut
from nadi.testing import fill_stream

EVIL = '<script>alert("x")</script><img src=x onerror=alert(1)>'


def html_of(shown: Any) -> str:
    return str(shown._repr_html_())


def lines_of(shown: Any) -> list[list[str]]:
    """Return the texts of a table's cells, row by row."""
    rows = re.findall(r"<tr>(.*?)</tr>", html_of(shown), re.DOTALL)
    return [[unescape(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)] for row in rows]


def test_a_cut_shows_each_segment() -> None:
    cut = StreamCut("home", "meters", {0: 12_000, (1 << 32) | 2: -1})
    assert lines_of(cut) == [["scope", "home"], ["stream", "meters"], ["0.#epoch.0", "12,000"], ["2.#epoch.1", "-1"]]
    assert pickle.loads(pickle.dumps(cut)) == cut
    assert not hasattr(cut, "__dict__")


def test_texts_of_others_stay_texts() -> None:
    cut = StreamCut("home", "meters", {0: 0})
    mark = Bookmark(EVIL, cut, datetime(2026, 1, 2, tzinfo=UTC), EVIL, (EVIL,))
    for shown in (mark, nadi.notebook.table([mark], EVIL), StreamCut(EVIL, EVIL, {})):
        assert not re.search(r"<(script|img)", html_of(shown))
        assert any(EVIL in cell for line in lines_of(shown) for cell in line)
    assert ["created", "2026-01-02 00:00:00 UTC"] in lines_of(mark)


def test_long_values_are_truncated() -> None:
    cut = StreamCut("home", "meters", dict.fromkeys(range(10_000), 5))
    assert lines_of(cut)[-1] == ["", f"and {10_000 - ROWS:,} more"]
    mark = Bookmark("m", cut, datetime.now(UTC), "x" * 4_096)
    assert ["note", "x" * CHARS + "…"] in lines_of(mark)
    assert len(html_of(nadi.notebook.table([mark] * 10_000))) < 400_000
    assert f"and {10_000 - ROWS:,} more" in html_of(nadi.notebook.table([mark] * 10_000))


def test_client_values_are_displayed(manager: StreamManager, scope: str) -> None:
    tail = fill_stream(manager, scope, "meters", [b"x"] * 10)
    info = manager.stream_info(scope, "meters")
    assert ["is sealed", "no"] in lines_of(info)
    manager.slices(scope).create("all", info.head, tail)
    named: NamedSlice = manager.slices(scope).get("all")
    assert [line[0] for line in lines_of(named)] == ["name", "start", "end", "created", "note", "tags"]
    heads, first, second = lines_of(nadi.notebook.table(manager.segment_history(scope, "meters")))
    assert heads[:5] == ["segment", "low", "high", "created", "replaced"]
    assert (first[0], second[0], first[4]) == ("0.#epoch.0", "1.#epoch.0", "–")
    assert re.fullmatch(r"20\d\d-\d\d-\d\d .* UTC", first[3])
    loads = lines_of(nadi.notebook.table(manager.segment_loads(scope, "meters")))
    assert loads[1][3].endswith("in the last 10 s")
    assert len(lines_of(nadi.notebook.table(manager.bookmarks(scope).list()))) == 0
    assert "nothing" in html_of(nadi.notebook.table(manager.bookmarks(scope).list()))
    assert lines_of(SegmentRange(1, 0.0, 0.25))[2] == ["high", "0.25"]


def test_reader_group_displays_its_lag(manager: StreamManager, scope: str) -> None:
    groups = manager.reader_group_manager(scope)
    groups.create_reader_group("billing", "meters")
    group = groups.get_reader_group("billing")
    fill_stream(manager, scope, "meters", [b"x" * 92] * 10)
    heads, line = lines_of(group)
    shown = dict(zip(heads, line, strict=True))
    assert (shown["stream"], shown["lag bytes"]) == (f"{scope}/meters", "1,000")
    assert shown["lag bytes"] == f"{group.lag()[0].lag_bytes:,}"
    groups.delete_reader_group("billing")
    assert "not found" in html_of(group)


def test_a_table_has_values_of_one_class(manager: StreamManager) -> None:
    with pytest.raises(InvalidArgumentError):
        nadi.notebook.table([SegmentRange(0, 0.0, 1.0), StreamCut("a", "b", {})])
    with pytest.raises(InvalidArgumentError):
        nadi.notebook.table(["a"])
