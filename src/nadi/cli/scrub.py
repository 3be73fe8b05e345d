"""`nadi scrub`: have a running server read everything it stores, and show what it finds."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from nadi.cli.printing import Form, say, show
from nadi.cli.session import connected

if TYPE_CHECKING:
    from nadi.client import StreamManager
    from nadi.model.scrub import ScrubPass, ScrubReport

_LOOK_S = 0.2


@connected
def scrub(
    manager: StreamManager,
    status: Annotated[bool, typer.Option("--status", help="Only report on the current and the last pass.")] = False,
    form: Form = Form.TABLE,
) -> None:
    """Have the server read and check all stored data now, and report damage; exits with code 1 if there is any.

    The server continues if this command is interrupted, and does the same by itself once a week.
    """
    report = manager.scrub() if status else _followed(manager, quiet=form is not Form.TABLE)
    if form is not Form.TABLE:
        show([_row(one) for one in (report.running, report.last) if one is not None], [], form=form, empty="")
    else:
        _tell(report, status=status)
    if report.last is not None and report.last.damages:
        raise typer.Exit(1)


def _followed(manager: StreamManager, *, quiet: bool) -> ScrubReport:
    """Start a pass, and wait for its end."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    report = manager.scrub(start=True)
    begun_ms = report.running.begun_ms if report.running is not None else 0
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn()
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as progress:
        task = progress.add_task("reading the states", total=None)
        while report.running is not None and report.running.begun_ms == begun_ms:
            now = report.running
            what = "all data" if now.read_bytes else f"the states ({now.records:,} records) and their snapshots"
            total = max(now.total_bytes, now.read_bytes) or None
            progress.update(task, description=f"reading {what}", completed=now.read_bytes, total=total)
            time.sleep(_LOOK_S)
            report = manager.scrub()
    return report


def _tell(report: ScrubReport, *, status: bool) -> None:
    if status and report.running is not None:
        now = report.running
        data = f"{now.read_bytes:,} of {now.total_bytes:,} bytes"
        say(f"under way since {_time(now.begun_ms)}: {_read(now, data)}")
    if report.last is None:
        say("No pass has finished yet.")
        return
    last = report.last
    say(
        f"{_time(last.ended_ms)}: {_read(last, f'{last.read_bytes:,} bytes')} "
        f"in {(last.ended_ms - last.begun_ms) / 1000:.1f} s: "
        + (f"damaged places: {last.damages:,}" if last.damages else "nothing is damaged")
    )
    if last.rewritten_bytes:
        say(f"  rewrote chunks with a damaged description: {last.rewritten_bytes:,} bytes")
    for text in last.damaged:
        say(f"  {text}")
    if last.damages > len(last.damaged):
        say(f"  and {last.damages - len(last.damaged):,} more: see the server's log")
    for text in last.renewed:
        say(f"  nothing is lost: {text}")
    if last.renewals > len(last.renewed):
        say(f"  and {last.renewals - len(last.renewed):,} more without loss: see the server's log")


def _read(one: ScrubPass, data: str) -> str:
    return (
        f"read {data}, {one.records:,} records in {one.state_bytes:,} bytes of states, "
        f"and {one.snapshot_bytes:,} bytes of snapshots"
    )


def _row(one: ScrubPass) -> dict[str, object]:
    return {name: getattr(one, name) for name in one.__struct_fields__}


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
