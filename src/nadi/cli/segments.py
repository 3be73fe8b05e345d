"""`nadi stream segments`: a stream's segments, now or over time, as a table or a picture."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nadi.cli.bookmarks import Scope, Stream
from nadi.cli.printing import Form, say, show
from nadi.cli.session import connected

if TYPE_CHECKING:
    from nadi.client import StreamManager
    from nadi.model.reports import LoadReport, SegmentReport


@connected
def show_segments(
    manager: StreamManager,
    scope: Scope,
    stream: Stream,
    history: Annotated[
        bool, typer.Option("--history", help="All segments ever, drawn over time: keys up, time across, shade by rate.")
    ] = False,
    picture: Annotated[
        Path | None, typer.Option(help="Draw it into this file instead: .svg, .png or .pdf (needs 'nadi[pictures]').")
    ] = None,
    last: Annotated[
        float | None, typer.Option(help="Draw only so many seconds up to now.", min=0.001, show_default=False)
    ] = None,
    form: Form = Form.TABLE,
) -> None:
    """Show a stream's current segments, or how they were split and merged."""
    from nadi.errors import InvalidArgumentError

    if last is not None and (form is not Form.TABLE or not (history or picture)):
        raise InvalidArgumentError("--last is for pictures: add --history or --picture FILE")
    if form is not Form.TABLE and picture is not None:
        raise InvalidArgumentError("--json, or -o, and --picture exclude each other: choose one")
    if picture is not None:
        from nadi.pictures import chart

        chart.check_file(picture)
    segments = manager.segment_history(scope, stream)
    if (history or picture is not None) and form is Form.TABLE:
        _draw(segments, f"{scope}/{stream}", picture, last)
        return
    if not history:
        current = {segment.segment_id for segment in manager.current_segments(scope, stream)}
        segments = sorted((s for s in segments if s.segment_id in current), key=lambda s: s.low)
    columns = ["segment", "low", "high", "since", "bytes", *([] if history else ["events/s", "bytes/s"])]
    loads = {load.segment_id: load for load in manager.segment_loads(scope, stream)} if not history else {}
    rows = [_row(s) | (_rates(loads.get(s.segment_id)) if not history else {}) for s in segments]
    show(rows, columns, form=form, empty=f"Stream {scope}/{stream} is sealed.")


def _row(segment: SegmentReport) -> dict[str, object]:
    from nadi.pictures.text import name_of

    return {
        "segment": name_of(segment.segment_id),
        "segment_id": segment.segment_id,
        "low": round(segment.low, 6),
        "high": round(segment.high, 6),
        "since": datetime.fromtimestamp(segment.created_ms / 1000, UTC).isoformat(" ", "seconds"),
        "bytes": segment.end_offset - segment.start_offset,
        "created_ms": segment.created_ms,
        "replaced_ms": segment.replaced_ms,
        "start_offset": segment.start_offset,
        "end_offset": segment.end_offset,
        "rolled": segment.rolled,
    }


def _rates(load: LoadReport | None) -> dict[str, object]:
    """Means over ten seconds."""
    if load is None:
        return {"events/s": 0, "bytes/s": 0}
    return {"events/s": round(load.events_per_s[1]), "bytes/s": round(load.bytes_per_s[1])}


def _draw(segments: list[SegmentReport], name: str, file: Path | None, last_s: float | None) -> None:
    from nadi.pictures import chart, text
    from nadi.pictures.spans import spans_of

    now_ms = time.time_ns() // 1_000_000
    spans = spans_of(segments, now_ms, now_ms - round(last_s * 1000) if last_s is not None else 0)
    if file is not None:
        chart.save(spans, file, name)
        say(f"drew {len(spans):,} segments of {name} into {file}")
        return
    from rich.console import Console

    say(text.picture(spans, columns=max(20, Console().width - 8)))
