"""`nadi repair`: do what can be done for a damaged data folder; what is given up is named before it asks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nadi.cli.check import inspected, locked, tell
from nadi.cli.printing import failure, say
from nadi.errors import InvalidArgumentError, NadiError

if TYPE_CHECKING:
    from nadi.segmentstore.repair.inspection import Repaired, Report


def repair(
    data: Annotated[Path | None, typer.Argument(help="The data folder; no server may have it open.")] = None,
    cut_log: Annotated[
        Path | None, typer.Option(help="Only end a log at a place in this file, as the error named it.")
    ] = None,
    at: Annotated[int | None, typer.Option(help="The byte of that file, as the error named it.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask.")] = False,
) -> None:
    """Repair a damaged data folder, after telling what is damaged and what would be given up.

    Nothing is deleted: what is replaced or cut off stays beside it, with `.damaged-<time>` in its name. Ends with code
    0 if all is well then, and with 1 if anything is lost, or was given up; whether a server can be started is said.
    """
    if (cut_log is None) != (at is None) or (cut_log is None) == (data is None):
        raise failure(InvalidArgumentError("give the data folder; or else both --cut-log FILE and --at BYTE"))
    if cut_log is not None and at is not None:
        _cut_log(cut_log.resolve(), at, yes=yes)
    elif data is not None:
        _repair(data, yes=yes)


def _repair(data: Path, *, yes: bool) -> None:
    lock = locked(data, changes=True)
    given_up: dict[str, None] = {}  # in order, each once
    try:
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
    finally:
        lock.release()
    lost = given_up | {f"{report.name}: {line}": None for report in reports for line in report.lost}
    if is_sound and not lost:
        return
    if all(report.can_be_served for report in reports):
        is_told = any(report.lost for report in reports)
        say("a server can be started" + ("; readers of what is LOST are told so" if is_told else ""))
    else:
        say("no server can be started as it is: put back from a copy what is LOST")
    for line in given_up:
        say(f"given up: {line}")
    if lost:
        say("what is LOST can't be repaired")
        raise typer.Exit(1)


_ROUNDS = 3  # a state made anew may show damage of the log that it hid


def _plan(reports: list[Report]) -> list[str]:
    plan = []
    for report in reports:
        if report.healed:
            plan.append(f"{report.name}: make anew what can be without loss")
        if report.cut is not None:
            cut = f"byte {report.cut.offset:,} of {Path(report.cut.file).name}"
            plan.append(f"{report.name}: end the log at {cut}, and so give up what is named above")
        if report.can_be_had_back:
            plan.append(f"{report.name}: make a state of what can be had back, and give up what is LOST")
        elif report.leaves_out:
            plan.append(f"{report.name}: leave out what can't be read of the log, and keep what follows")
        if report.unnamed:
            plan.append(f"{report.name}: set aside chunks of what is given up: {report.unnamed:,}")
    return plan


def _do(data: Path, reports: list[Report]) -> None:
    import asyncio

    from nadi.segmentstore import reserve
    from nadi.segmentstore.datafolder import known_containers, read_format, write_format
    from nadi.segmentstore.repair.inspection import repair_container
    from nadi.segmentstore.tier1.cut import cut
    from nadi.segmentstore.tier2.chunks import ChunkStore

    try:
        if reports[0].containers:
            write_format(data, reports[0].containers)
        elif reports[0].healed and not reports[0].lost:
            read_format(data, None)
        by_name = {path.name: (number, path) for number, path in known_containers(data).items()}
        for report in reports[1:]:
            number, folder = by_name[report.name]
            if report.cut is not None:
                with reserve.in_words(folder):
                    say(cut(folder / "log", Path(report.cut.file).name, report.cut.offset))
            if report.healed or report.gives_up:
                folder.mkdir(mode=0o700, exist_ok=True)
                _say_done(
                    report.name, asyncio.run(repair_container(folder, number, ChunkStore.in_folder(data / "tier2")))
                )
    except (NadiError, OSError) as error:
        raise failure(error) from None


def _say_done(name: str, done: Repaired | None) -> None:
    if done is None:
        return
    kept = f"; the former one is kept as {done.aside.name}" if done.aside is not None else ""
    say(f"{name}: the state was made of what there is{kept}")
    for place in done.had_back:
        say(f"{name}: chunks had what is missing of the log: {place}")
    if done.unnamed:
        say(f"{name}: {done.unnamed:,} chunks of what is given up are kept as {done.chunks_aside} in tier 2")


def _cut_log(file: Path, at: int, *, yes: bool) -> None:
    import asyncio
    import tempfile

    from nadi.segmentstore import reserve
    from nadi.segmentstore.repair.inspection import cut_of, inspect_container, repair_container
    from nadi.segmentstore.tier1.cut import cut
    from nadi.segmentstore.tier2.chunks import ChunkStore

    folder = file.parent.parent
    number = folder.name.removeprefix("container-")
    if not number.isdecimal():
        raise failure(InvalidArgumentError(f"{file} is in no container's log of a data folder"))
    lock = locked(folder.parent, changes=True)
    try:
        try:
            place = cut_of(file, at)
            chunks = ChunkStore.in_folder(folder.parent / "tier2")
            with reserve.in_words(Path(tempfile.gettempdir())):
                report = asyncio.run(inspect_container(folder, int(number), chunks, place))
        except (NadiError, OSError) as error:
            raise failure(error) from None
        tell([report])
        if report.state_is_lost is not None or not report.segments:
            emptied = "the container would be empty: nothing of it could be had any more"
            raise failure(InvalidArgumentError(f"{emptied}. See `nadi check {folder.parent}`, and `nadi repair`"))
        if not yes:
            typer.confirm(f"End the log at byte {at:,} of {file.name}, and give up what is LOST above?", abort=True)
        try:
            with reserve.in_words(folder):
                say(cut(file.parent, file.name, at))
            done = asyncio.run(repair_container(folder, int(number), chunks, leaves_out=False))
        except (NadiError, OSError, ValueError) as error:
            raise failure(error) from None
        _say_done(folder.name, done)
        if report.lost:
            raise typer.Exit(1)
    finally:
        lock.release()
