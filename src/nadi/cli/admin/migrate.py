"""`nadi migrate`: the data of one server becomes a cluster's, or the other way round."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nadi.cli.admin.storing import STORE_HELP, StoreOptions, store_options
from nadi.cli.printing import errors_told, say
from nadi.cli.session import TrustStore
from nadi.defaults import DEFAULT_REST_PORT, MOST_CONTAINERS
from nadi.errors import DataFolderLockedError, InvalidArgumentError

if TYPE_CHECKING:
    from nadi.migration.ends import Source, Target
    from nadi.migration.moving import Report
    from nadi.migration.planning import Plan
    from nadi.migration.sources import Server
    from nadi.observe.migration import HoldReport

_REST = f"http://127.0.0.1:{DEFAULT_REST_PORT}"


def migrate(
    data: Annotated[Path | None, typer.Option(help="Move this data folder, of a server that runs or of none.")] = None,
    to: Annotated[str | None, typer.Option(help=f"There. {STORE_HELP}")] = None,
    from_: Annotated[str | None, typer.Option("--from", help="Move the cluster in this store, by its URL.")] = None,
    to_data: Annotated[Path | None, typer.Option(help="There: a folder that is empty, or isn't there yet.")] = None,
    containers: Annotated[
        int | None,
        typer.Option(
            help="How many the target is to have, for good. [default: 8; 1 for a folder]", min=1, max=MOST_CONTAINERS
        ),
    ] = None,
    store_option: StoreOptions = None,
    rest: Annotated[
        str, typer.Option(envvar="NADI_REST", help="The REST address of the server that has the data folder.")
    ] = _REST,
    trust_store: TrustStore = None,
    pause_limit: Annotated[
        float | None, typer.Option(help="How long its writers may be held, in seconds. [default: 60]", min=1)
    ] = None,
    ahead: Annotated[
        bool, typer.Option("--ahead", help="Only copy what is there by now; the source goes on as it is.")
    ] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Read back whatever is stored.")] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Only say what there is to move, and whether it can be; nothing is written."),
    ] = False,
    undo: Annotated[
        bool, typer.Option("--undo", help="Let --data, or --from, be served again, if nobody has used the target.")
    ] = False,
) -> None:
    """Move a data folder's data to a store, where a cluster serves it, or a cluster's to a data folder.

    Everything comes along. A running server of a data folder serves on; only at the end are its writers held. Started
    again, a migration that was interrupted goes on where it was; the source is served until all is complete.
    """
    import asyncio

    from nadi.migration.planning import check_apart

    with errors_told(OSError):
        if (data is None) == (from_ is None):
            raise InvalidArgumentError("say what to move: --data FOLDER, or --from URL")
        if data is not None and not data.is_dir():
            raise FileNotFoundError(f"there is no folder {data}")
        if undo:
            given = {"--to": to, "--to-data": to_data, "--ahead": ahead, "--verify": verify, "--dry-run": dry_run}
            _check_absent({**given, "--containers": containers}, "isn't for --undo")
            say(asyncio.run(_taken_back(data, from_, store_option)))
            return
        if dry_run:
            _check_absent({"--ahead": ahead, "--verify": verify}, "isn't for --dry-run")
        if data is not None:
            if to is None or to_data is not None:
                raise InvalidArgumentError("a data folder is moved to a store: give its URL with --to")
            check_apart(data.absolute().as_uri(), to)
            if dry_run:
                say(asyncio.run(_planned_folder(data, to, store_options(to, store_option), containers)))
                return
            held = _Held(rest, trust_store)
            moves = _moved_folder(data, to, store_options(to, store_option), containers, held, _limit_s(pause_limit))
        else:
            assert from_ is not None
            if to_data is None or to is not None:
                raise InvalidArgumentError("a cluster is moved to a data folder: give it with --to-data")
            check_apart(from_, to_data.absolute().as_uri())
            if dry_run:
                say(asyncio.run(_planned_cluster(from_, store_options(from_, store_option), to_data)))
                return
            moves = _moved_cluster(from_, store_options(from_, store_option), to_data, containers)
        _tell(asyncio.run(_run(*moves, ahead=ahead, verify=verify)), str(to or to_data), to)


def _limit_s(given: float | None) -> float:
    from nadi.limits import MIGRATION_PAUSE_MAX_S, MIGRATION_PAUSE_S

    if given is not None and given > MIGRATION_PAUSE_MAX_S:
        raise InvalidArgumentError(f"--pause-limit {given:g}: writers are held for {MIGRATION_PAUSE_MAX_S:g} s at most")
    return MIGRATION_PAUSE_S if given is None else given


def _check_absent(given: dict[str, Any], why: str) -> None:
    for name, value in given.items():
        if value:
            raise InvalidArgumentError(f"{name} {why}: leave it out")


def _moved_folder(
    data: Path, to: str, options: dict[str, str], containers: int | None, server: Server, limit_s: float
) -> tuple[Source, Target]:
    from nadi.migration.sources import ServedFolder, StoppedFolder
    from nadi.migration.targets import NewCluster
    from nadi.segmentstore.datafolder import FolderLock

    target = NewCluster(to, options, containers)
    try:
        FolderLock(data, changes=False).release()
    except DataFolderLockedError:
        return ServedFolder(data, server, limit_s), target
    return StoppedFolder(data), target


def _moved_cluster(url: str, options: dict[str, str], to_data: Path, containers: int | None) -> tuple[Source, Target]:
    from nadi.migration.sources import ClusterStore
    from nadi.migration.targets import NewFolder

    return ClusterStore(url, options), NewFolder(to_data, containers)


async def _planned_folder(data: Path, to: str, options: dict[str, str], containers: int | None) -> str:
    from nadi.migration.planning import look_at_store, plan_of_folder

    plan = await plan_of_folder(data)
    return _told(plan, str(data), to, has_begun=await look_at_store(to, options, containers))


async def _planned_cluster(url: str, options: dict[str, str], to_data: Path) -> str:
    from nadi.migration.planning import look_at_folder, plan_of_cluster

    plan = await plan_of_cluster(url, options)
    return _told(plan, url, str(to_data), has_begun=look_at_folder(to_data))


def _told(plan: Plan, what: str, where: str, *, has_begun: bool) -> str:
    told = [
        f"{what} has {plan.segments:,} segments in {plan.containers:,} containers, {plan.bytes:,} bytes of them in "
        f"{plan.chunks:,} chunks, {plan.logged_bytes:,} bytes in the log",
        f"a migration to {where} has begun, and would go on"
        if has_begun
        else f"nothing is in {where}: it can go there",
    ]
    if plan.servers:
        told.append(f"before that, its servers must be stopped: {', '.join(plan.servers)}")
    return "\n".join(told)


async def _run(source: Any, target: Any, *, ahead: bool, verify: bool) -> Report:
    from nadi.migration.moving import Migration

    with _Shown() as progress:
        async with source, target:
            return await Migration(source, target, progress, verifies=verify).run(only_ahead=ahead)


async def _taken_back(data: Path | None, url: str | None, given: list[str] | None) -> str:
    from nadi.migration.undoing import take_back_cluster, take_back_folder
    from nadi.segmentstore import moved

    if data is not None:
        left = moved.moved(data)
        options = store_options(left.to, given) if left is not None else {}
        return f"{data} can be served again; {await take_back_folder(data, options)} can't be"
    assert url is not None
    return f"{url} can be served again; {await take_back_cluster(url, store_options(url, given))} can't be"


def _tell(report: Report, where: str, url: str | None) -> None:
    rate = report.stored_bytes / max(report.took_s, 1e-3) / 1e6
    say(
        f"copied {report.stored_bytes:,} bytes in {report.took_s:.1f} s ({rate:,.0f} MB/s); "
        f"{where} has {report.bytes:,} bytes in {report.chunks:,} chunks"
    )
    if not report.is_moved:
        say("the source goes on as it is: start this again without --ahead to move it")
        return
    if report.segments:
        say(f"moved {report.segments:,} segments")
    if report.paused_s:
        say(f"writers are held since {report.paused_s:.1f} s ago: stop the server, and start the new ones")
    say(f"start a server with `nadi up {'--store' if url else '--data'} {where}`")


class _Held:
    """The REST of the server that has the folder."""

    def __init__(self, rest: str, trust_store: str | None) -> None:
        self._rest, self._trust_store = rest.rstrip("/"), trust_store

    def refresh(self) -> None:
        from nadi.limits import MIGRATION_REFRESH_S

        self._asked("refresh", type(None), within_s=MIGRATION_REFRESH_S)

    def hold(self, limit_s: float) -> HoldReport:
        from nadi.observe.migration import HoldReport

        report: HoldReport = self._asked("hold", HoldReport, {"limit_s": limit_s}, within_s=limit_s + 10)
        return report

    def go_on(self) -> None:
        self._asked("go-on", type(None))

    def leave(self, hold: str, to: str, migration: str) -> None:
        self._asked("leave", type(None), {"hold": hold, "to": to, "migration": migration})

    def _asked(self, what: str, kind: type[Any], body: object = None, *, within_s: float = 10.0) -> Any:
        from nadi.cli.cluster.asking import RestClient

        url = f"{self._rest}/v1/migration/{what}"
        return RestClient(self._rest, self._trust_store).asked("POST", url, kind, body, within_s=within_s)


class _Shown:
    """A bar on the terminal, if standard error is one."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

        console = Console(stderr=True)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
        )
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("looking at both ends", total=None)

    def __enter__(self) -> _Shown:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def begin(self, what: str, total_bytes: int) -> None:
        self._bar.reset(self._task, description=what, total=total_bytes or None)

    def done(self, size_bytes: int) -> None:
        self._bar.advance(self._task, size_bytes)
