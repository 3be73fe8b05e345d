"""`nadi repair`: repair what can be repaired of a damaged data folder; it names what is given up, then asks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nadi.cli.admin.check import inspected, locked, tell
from nadi.cli.printing import errors_told, failure, say
from nadi.errors import InvalidArgumentError

if TYPE_CHECKING:
    from nadi.segmentstore.repair.replacement import Repaired
    from nadi.segmentstore.repair.report import Report


def repair(
    data: Annotated[Path | None, typer.Argument(help="The data folder; no server may be using it.")] = None,
    cut_log: Annotated[
        Path | None, typer.Option(help="Only end a log at a place in this file, as named in the error.")
    ] = None,
    at: Annotated[int | None, typer.Option(help="The byte of that file, as named in the error.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask.")] = False,
) -> None:
    """Repair a damaged data folder, after reporting what is damaged and what would be given up.

    Nothing is deleted: whatever is replaced or cut off stays beside it, with `.damaged-<time>` in its name. Exits with
    code 0 if all is well then, and with 1 if anything is lost or was given up; the output says whether a server can be
    started.
    """
    if (cut_log is None) != (at is None) or (cut_log is None) == (data is None):
        raise failure(InvalidArgumentError("pass the data folder, or else both --cut-log FILE and --at BYTE"))
    if cut_log is not None and at is not None:
        _cut_log(cut_log.resolve(), at, yes=yes)
    elif data is not None:
        _repair(data, yes=yes)


def _repair(data: Path, *, yes: bool) -> None:
    given_up: dict[str, None] = {}  # in order, each once
    with locked(data, changes=True):
        reports = inspected(data)
        for _ in range(_ROUNDS):
            is_sound = tell(reports, is_repaired=bool(given_up))
            plan = _plan(reports)
            if is_sound or not plan:
                break
            for line in plan:
                say(f"to do: {line}")
            if not yes:
                typer.confirm("Do that?", abort=True)
            _do(data, reports)
            given_up |= {
                f"{report.name}: {line}": None for report in reports if report.gives_up for line in report.lost
            }
            reports = inspected(data)
        else:
            is_sound = tell(reports, is_repaired=bool(given_up))
    lost = given_up | {f"{report.name}: {line}": None for report in reports for line in report.lost}
    if is_sound and not lost:
        return
    if all(report.can_be_served for report in reports):
        is_told = any(report.lost for report in reports)
        say("a server can be started" + ("; readers of what is LOST get an error" if is_told else ""))
    else:
        say("no server can be started: restore what is LOST from a copy")
    for line in given_up:
        say(f"given up: {line}")
    if lost:
        say("what is LOST can't be repaired")
        raise typer.Exit(1)


_ROUNDS = 3  # a rebuilt state may reveal damage of the log that it hid


def _plan(reports: list[Report]) -> list[str]:
    plan = []
    for report in reports:
        if report.healed:
            plan.append(f"{report.name}: rebuild what can be rebuilt without loss")
        if report.cut is not None:
            cut = f"byte {report.cut.offset:,} of {Path(report.cut.file).name}"
            plan.append(f"{report.name}: end the log at {cut}, and give up what is named above")
        if report.can_be_had_back:
            plan.append(f"{report.name}: build a state from what can be recovered, and give up what is LOST")
        elif report.leaves_out:
            plan.append(f"{report.name}: leave out the parts of the log that can't be read, and keep what follows")
        if report.unnamed:
            plan.append(f"{report.name}: set aside chunks of what is given up: {report.unnamed:,}")
    return plan


def _do(data: Path, reports: list[Report]) -> None:
    import asyncio

    from nadi.segmentstore import reserve
    from nadi.segmentstore.datafolder import known_containers, renew_format, write_format
    from nadi.segmentstore.tier1.cut import cut

    with errors_told(OSError):
        if reports[0].containers:
            write_format(data, reports[0].containers)
        elif not reports[0].is_refused:
            renew_format(data)  # also for states in the form of this version, which an earlier one would misread
        by_name = {path.name: (number, path) for number, path in known_containers(data).items()}
        for report in reports[1:]:
            number, folder = by_name[report.name]
            if report.cut is not None:
                with reserve.in_words(folder):
                    say(cut(folder / "log", Path(report.cut.file).name, report.cut.offset))
            if report.healed or report.gives_up:
                folder.mkdir(mode=0o700, exist_ok=True)
                _say_done(report.name, asyncio.run(_repaired(folder, number)))


async def _repaired(folder: Path, number: int, *, leaves_out: bool = True) -> Repaired | None:
    from nadi.runtime import REAL
    from nadi.segmentstore.repair.replacement import repair_container
    from nadi.segmentstore.tier2.opening import taken_over

    async with taken_over(folder.parent, REAL) as chunks:
        return await repair_container(folder, number, chunks, leaves_out=leaves_out)


def _say_done(name: str, done: Repaired | None) -> None:
    if done is None:
        return
    kept = f"; the previous one is kept as {done.aside.name}" if done.aside is not None else ""
    say(f"{name}: the state was built from what is there{kept}")
    for place in done.had_back:
        say(f"{name}: recovered from chunks what the log lacks: {place}")
    if done.unnamed:
        say(f"{name}: {done.unnamed:,} chunks of what was given up are kept as {done.chunks_aside} in tier 2")


def _cut_log(file: Path, at: int, *, yes: bool) -> None:
    import asyncio
    import tempfile

    from nadi.runtime import REAL
    from nadi.segmentstore import reserve
    from nadi.segmentstore.datafolder import renew_format
    from nadi.segmentstore.repair.inspection import cut_of, inspect_container
    from nadi.segmentstore.tier1.cut import cut
    from nadi.segmentstore.tier2.opening import looked_at

    folder = file.parent.parent
    number = folder.name.removeprefix("container-")
    if not number.isdecimal():
        raise failure(InvalidArgumentError(f"{file} is not in the log of a data folder's container"))
    with locked(folder.parent, changes=True):
        with errors_told(OSError):
            place = cut_of(file, at)
            with looked_at(folder.parent, REAL) as chunks, reserve.in_words(Path(tempfile.gettempdir())):
                report = asyncio.run(inspect_container(folder, int(number), chunks, place))
        tell([report])
        if report.state_is_lost is not None or not report.segments:
            emptied = "the container would be empty: nothing of it could be read any more"
            raise failure(InvalidArgumentError(f"{emptied}. See `nadi check {folder.parent}`, and `nadi repair`"))
        if not yes:
            typer.confirm(f"End the log at byte {at:,} of {file.name}, and give up what is LOST above?", abort=True)
        with errors_told(OSError, ValueError):
            renew_format(folder.parent)
            with reserve.in_words(folder):
                say(cut(file.parent, file.name, at))
            done = asyncio.run(_repaired(folder, int(number), leaves_out=False))
        _say_done(folder.name, done)
        if report.lost:
            raise typer.Exit(1)
