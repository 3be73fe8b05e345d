"""`nadi stream scaling` and `scaling-log`: the policy by which a stream is split and merged, and what came of it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nadi.cli.bookmarks import Scope, Stream
from nadi.cli.printing import Form, say, show
from nadi.cli.session import connected
from nadi.errors import InvalidArgumentError

if TYPE_CHECKING:
    from nadi.client import ScalingPolicy, StreamManager
    from nadi.model.reports import ScalingReport

_LISTED = 8  # segments or key ranges of one decision

EventsPerS = Annotated[
    int | None, typer.Option("--events-per-s", help="Split segments that receive more events per second.", min=1)
]
KibPerS = Annotated[
    int | None, typer.Option("--kib-per-s", help="Split segments that receive more KiB per second.", min=1)
]
ScaleFactor = Annotated[
    int | None, typer.Option(help="Pieces that one split may make, at most. [default: 2]", min=2, show_default=False)
]


def policy_of(segments: int, events_per_s: int | None, kib_per_s: int | None, factor: int | None) -> ScalingPolicy:
    """The policy that these options give."""
    from nadi.client import ScalingPolicy

    if events_per_s is not None and kib_per_s is not None:
        raise InvalidArgumentError("--events-per-s and --kib-per-s exclude each other: choose one")
    if events_per_s is not None:
        return ScalingPolicy.by_event_rate(events_per_s, factor or 2, segments)
    if kib_per_s is not None:
        return ScalingPolicy.by_data_rate(kib_per_s, factor or 2, segments)
    if factor is not None:
        raise InvalidArgumentError(
            "--scale-factor has no effect on a fixed number of segments: add --events-per-s or --kib-per-s"
        )
    return ScalingPolicy.fixed(segments)


def scaling_text(policy: ScalingPolicy) -> str:
    """The policy in words: `1,000 events/s a segment, at least 4 segments, …`."""
    from nadi.client.control.policy import BY_EVENTS, FIXED

    several = f"{policy.min_segments:,} segment{'s' if policy.min_segments > 1 else ''}"
    if policy.kind == FIXED:
        return f"{several}, fixed"
    unit = "events/s" if policy.kind == BY_EVENTS else "KiB/s"
    pieces = max(2, policy.scale_factor)
    return f"{policy.target_rate:,} {unit} a segment, at least {several}, split into up to {pieces:,} at once"


@connected
def scaling(
    manager: StreamManager,
    scope: Scope,
    stream: Stream,
    segments: Annotated[int, typer.Option(help="Minimum number of segments.", min=1)] = 1,
    events_per_s: EventsPerS = None,
    kib_per_s: KibPerS = None,
    scale_factor: ScaleFactor = None,
) -> None:
    """Change how a stream is scaled: by its load, or fixed at --segments."""
    policy = policy_of(segments, events_per_s, kib_per_s, scale_factor)
    manager.update_stream(scope, stream, scaling=policy)
    say(f"stream {scope}/{stream} has {scaling_text(policy)}")


@connected
def scaling_log(
    manager: StreamManager,
    scope: Scope,
    stream: Stream,
    last: Annotated[int, typer.Option(help="So many of the latest decisions.", min=1)] = 20,
    form: Form = Form.TABLE,
) -> None:
    """Show what was decided about a stream's segments, and why."""
    decisions = manager.scaling_log(scope, stream)[-last:]
    rows = [_row(one) if form is not Form.TABLE else _told(_row(one)) for one in decisions]
    empty = f"Nothing was decided about {scope}/{stream} yet."
    show(rows, ["at", "decision", "segments", "into", "why"], form=form, empty=empty)


def _row(one: ScalingReport) -> dict[str, Any]:
    from msgspec import structs

    from nadi.charts import name_of

    at = datetime.fromtimestamp(one.at_ms / 1000, UTC)
    fields = structs.asdict(one)
    return fields | {
        "at": at.isoformat(timespec="milliseconds"),
        "decision": one.kind if one.is_done else f"{one.kind} (not carried out)",
        "segments": [name_of(segment) for segment in one.segments],
    }


def _told(row: dict[str, Any]) -> dict[str, Any]:
    """The row as people read it."""
    into = [f"{low:.4g}-{high:.4g}" for low, high in row["into"]]
    return row | {"segments": _first(row["segments"]), "into": _first(into)}


def _first(names: list[str]) -> list[str]:
    left = len(names) - _LISTED
    return names if left < 2 else [*names[:_LISTED], f"and {left:,} more"]
