"""`nadi stream segments`: table and pictures of a stream that was split and truncated."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from nadi.charts import SHADES, TRUNCATED, UP, Span, grid, picture, rate_text, spans_of
from nadi.client import StreamManager
from nadi.model.reports import SegmentReport

from .test_streams import Shell


@pytest.fixture(scope="module", autouse=True)
def scaled(manager: StreamManager) -> None:
    manager.create_stream("home", "scaled", 1)
    with manager.create_writer("home", "scaled") as writer:
        writer.write_batch([b"." * 992] * 10, "key")
        writer.flush()
        (only,) = manager.current_segments("home", "scaled")
        manager.scale_stream("home", "scaled", [only.segment_id], [(0.0, 0.25), (0.25, 1.0)])
        manager.truncate_stream(manager.stream_info("home", "scaled").tail)
        writer.write_batch([b"." * 992] * 3, "key")


def test_segments_lists_current_segments(shell: Shell) -> None:
    low, high = shell.json("stream", "segments", "home", "scaled")
    assert [(row["low"], row["high"]) for row in (low, high)] == [(0.0, 0.25), (0.25, 1.0)]
    assert low["bytes"] + high["bytes"] == 3 * 1000
    assert "1.#epoch.1" in shell.run("stream", "segments", "home", "scaled").output


def test_segments_history_includes_replaced_and_truncated_ones(shell: Shell) -> None:
    old, *current = shell.json("stream", "segments", "home", "scaled", "--history")
    assert (old["segment"], old["start_offset"], old["end_offset"]) == ("0.#epoch.0", 10_000, 10_000)
    assert old["replaced_ms"] == current[0]["created_ms"] == current[1]["created_ms"]
    assert [row["replaced_ms"] for row in current] == [None, None]


def test_segments_history_is_drawn_as_text(shell: Shell) -> None:
    drawn = shell.run("stream", "segments", "home", "scaled", "--history").output
    assert drawn.startswith(" 1.00 ")
    assert TRUNCATED in drawn
    assert "3 segments" in drawn
    assert "No segment" not in shell.run("stream", "segments", "home", "scaled", "--history", "--last", "60").output


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_segments_history_is_drawn_into_a_file(shell: Shell, tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"meters.{suffix}"
    assert "3 segments" in shell.run("stream", "segments", "home", "scaled", "--picture", str(file)).output
    if suffix == "svg":
        assert ET.parse(file).getroot().tag.endswith("svg")
    else:
        assert file.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--picture", "meters.jpeg"], ".svg, .png, .pdf"),
        (["--picture", "/no/such/folder/meters.svg"], "/no/such/folder"),
        (["--last", "60"], "--history"),
        (["--json", "--picture", "a.svg"], "--picture"),
    ],
)
def test_segments_with_conflicting_options_fails(shell: Shell, options: list[str], named: str) -> None:
    printed = shell.run("stream", "segments", "home", "scaled", *options, code=2)
    assert named in " ".join(printed.output.split())


def test_grid_cell_shows_the_span_at_its_middle() -> None:
    first = Span(0, 0.0, 1.0, 0, 1000, 500, 100.0)
    low, high = Span(1, 0.0, 0.5, 1000, 2000, 0, 400.0), Span(2, 0.5, 1.0, 1000, 2000, 0, 0.0)
    field = grid([first, low, high], 8, 4)
    assert [[span.segment_id for span in row if span is not None] for row in field.cells] == [
        [0, 0, 0, 0, 2, 2, 2, 2],
        [0, 0, 0, 0, 2, 2, 2, 2],
        [0, 0, 0, 0, 1, 1, 1, 1],
        [0, 0, 0, 0, 1, 1, 1, 1],
    ]
    lines = picture([first, low, high], 8, 4).splitlines()
    assert [line[6:] for line in lines[:4]] == ["··░░│   ", "··░░│   ", "··░░│───", "··░░│███"]
    assert UP == "│"
    assert SHADES[0] == " "


def test_grid_shows_a_segment_shorter_than_a_column() -> None:
    spans = [Span(0, 0.0, 1.0, 0, 5000, 0, 1.0), Span(1, 0.0, 1.0, 5000, 5001, 0, 9.0), Span(2, 0, 1, 5001, 9000, 0, 1)]
    assert any(span is spans[1] for span in grid(spans, 5, 1).cells[0])


def test_spans_of_omits_and_cuts_off_earlier_segments() -> None:
    reports = [SegmentReport(0, 0, 1, 0, 1000, 0, 10), SegmentReport(1, 0, 1, 1000, None, 500, 1000)]
    (span,) = spans_of(reports, now_ms=3000, since_ms=1500)
    assert (span.segment_id, span.start_ms, span.end_ms, span.head_ms) == (1, 1500, 3000, 2000)
    assert spans_of([], 0) == []
    assert len(picture([]).splitlines()) == 1


def test_rate_text_has_few_digits() -> None:
    assert [rate_text(rate) for rate in (999, 9_990, 12_345, 5e9)] == ["999 B/s", "10 KB/s", "12 KB/s", "5 GB/s"]
