"""`nadi scrub`: make a running server verify everything it stores, and report damage."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from nadi.cli.printing import Form, bar, say, show, utc
from nadi.naming import plural

if TYPE_CHECKING:
    from nadi.client import StreamManager
    from nadi.model.scrub import ScrubPass, ScrubReport

_POLL_S = 0.2


def scrub(
    manager: StreamManager,
    status: Annotated[bool, typer.Option("--status", help="Only report the current and the last pass.")] = False,
    form: Form = Form.TABLE,
) -> None:
    """Make the server verify all stored data now and report damage. Exits with code 1 if there is any.

    The server continues if this command is interrupted. It also scrubs by itself once a week.
    """
    from msgspec import structs

    report = manager.scrub() if status else _run_pass(manager, quiet=form is not Form.TABLE)
    if form is not Form.TABLE:
        show([structs.asdict(each) for each in (report.running, report.last) if each is not None], form=form)
    else:
        _report(report, status=status)
    if report.last is not None and report.last.damages:
        raise typer.Exit(1)


def _run_pass(manager: StreamManager, *, quiet: bool) -> ScrubReport:
    """Start a pass and wait for its end."""
    report = manager.scrub(start=True)
    start_ms = report.running.started_ms if report.running is not None else 0
    with bar("reading states", None, quiet=quiet) as show_progress:
        while report.running is not None and report.running.started_ms == start_ms:
            now = report.running
            target = "all data" if now.read_bytes else f"states ({now.records:,} records) and snapshots"
            total = max(now.total_bytes, now.read_bytes) or None
            show_progress(now.read_bytes, description=f"reading {target}", total=total)
            time.sleep(_POLL_S)
            report = manager.scrub()
    return report


def _report(report: ScrubReport, *, status: bool) -> None:
    if status and report.running is not None:
        now = report.running
        data = f"{now.read_bytes:,} of {now.total_bytes:,} bytes"
        say(f"running since {utc(now.started_ms)}: {_read(now, data)}")
    if report.last is None:
        say("No pass has finished yet.")
        return
    last = report.last
    say(
        f"{utc(last.ended_ms)}: {_read(last, f'{last.read_bytes:,} bytes')} "
        f"in {(last.ended_ms - last.started_ms) / 1000:.1f} s: "
        + (plural(last.damages, "damaged range") if last.damages else "no damage")
    )
    if last.rewritten_bytes:
        say(f"  rewrote chunks with damaged metadata: {last.rewritten_bytes:,} bytes")
    for text in last.damaged:
        say(f"  {text}")
    if last.damages > len(last.damaged):
        say(f"  and {last.damages - len(last.damaged):,} more: see the server's log")
    for text in last.renewed:
        say(f"  repaired without loss: {text}")
    if last.renewals > len(last.renewed):
        say(f"  and {last.renewals - len(last.renewed):,} more repaired without loss: see the server's log")


def _read(pass_: ScrubPass, data: str) -> str:
    return (
        f"read {data}, {pass_.records:,} records in {pass_.state_bytes:,} bytes of states "
        f"and {pass_.snapshot_bytes:,} bytes of snapshots"
    )
