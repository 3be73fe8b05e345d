"""`nadi migrate`: move all data of a data folder or cluster store to a new one."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nadi.cli.admin.storing import TIER2_HELP, StoreOptions, Tier2Options, store_options
from nadi.cli.options import DryRun, Rest, TrustStore
from nadi.cli.printing import bar, reporting_errors, say
from nadi.cli.session import check_absent
from nadi.defaults import DEFAULT_REST_PORT, MOST_CONTAINERS
from nadi.errors import DataFolderLockedError, InvalidArgumentError
from nadi.naming import plural

if TYPE_CHECKING:
    from nadi.migration.migrate import MigrationReport
    from nadi.migration.sources import Ask, MigrationSource
    from nadi.migration.targets import MigrationTarget

_REST = f"http://127.0.0.1:{DEFAULT_REST_PORT}"


def migrate(
    from_: Annotated[
        str,
        typer.Argument(
            metavar="FROM", help="Data folder, with or without a running server, or URL of a cluster's store."
        ),
    ],
    to: Annotated[
        str | None,
        typer.Argument(metavar="TO", help="New data folder, or URL of a new cluster's store (see --store)."),
    ] = None,
    containers: Annotated[
        int | None,
        typer.Option(
            help="Number of containers of the target; it can't be changed later.",
            show_default="8; 1 for a folder",
            min=1,
            max=MOST_CONTAINERS,
        ),
    ] = None,
    store_option: StoreOptions = None,
    tier2: Annotated[str | None, typer.Option(help=f"Tier 2 of a new data folder. {TIER2_HELP}")] = None,
    tier2_option: Tier2Options = None,
    rest: Rest = _REST,
    trust_store: TrustStore = None,
    pause_limit: Annotated[
        float | None, typer.Option(help="How long writers may be paused, in seconds.", show_default="60", min=1)
    ] = None,
    ahead: Annotated[
        bool, typer.Option("--ahead", help="Only copy existing data; the source stays in service.")
    ] = False,
    encrypt: Annotated[
        bool, typer.Option("--encrypt", help="Encrypt the target, as it always is if FROM is (docs/encryption.md).")
    ] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Read back all copied data.")] = False,
    dry_run: DryRun = False,
    undo: Annotated[
        bool, typer.Option("--undo", help="Release FROM for use again, after the target was removed.")
    ] = False,
) -> None:
    """Move all data of a data folder or cluster store to a new data folder or cluster store.

    A data folder's running server stays in service; its writers are paused only at the end. To resume an interrupted
    migration, run the command again. The source stays in service until the migration is complete.
    """
    import asyncio

    from nadi.limits import MIGRATION_PAUSE_MAX_S, MIGRATION_PAUSE_S
    from nadi.migration.planning import check_apart
    from nadi.migration.targets import NewCluster, NewFolder
    from nadi.segmentstore.data_dir import Tier2

    with reporting_errors(OSError):
        if not _is_url(from_) and not Path(from_).is_dir():
            raise FileNotFoundError(f"folder {from_} doesn't exist")
        if undo:
            if to is not None:
                raise InvalidArgumentError("TO can't be used with --undo: omit it")
            excluded = {"ahead": ahead, "verify": verify, "dry_run": dry_run, "tier2": tier2, "containers": containers}
            check_absent("can't be used with --undo: omit it", encrypt=encrypt, **excluded)
            say(asyncio.run(_taken_back(from_, store_option)))
            return
        if to is None:
            raise InvalidArgumentError("no target given: TO is a new data folder or the URL of a new cluster's store")
        if _is_url(to):
            check_absent("is only for a new data folder: omit it", tier2=tier2, tier2_option=tier2_option)
        elif tier2 is None:
            check_absent("can't be used without --tier2: omit it", tier2_option=tier2_option)
        for target_url in (to, tier2):
            if target_url is not None:
                check_apart(*(url if _is_url(url) else Path(url).absolute().as_uri() for url in (from_, target_url)))
        options = store_options(to if _is_url(to) else from_, store_option)
        there = None if tier2 is None else (tier2, store_options(tier2, tier2_option, "--tier2-option"))
        if dry_run:
            check_absent("can't be used with --dry-run: omit it", ahead=ahead, verify=verify)
            say(asyncio.run(_planned(from_, to, options, containers, there)))
            return
        if pause_limit is not None and not pause_limit <= MIGRATION_PAUSE_MAX_S:  # nor is it NaN
            raise InvalidArgumentError(
                f"--pause-limit {pause_limit:g} is too long: the maximum is {MIGRATION_PAUSE_MAX_S:g} s"
            )
        limit_s = MIGRATION_PAUSE_S if pause_limit is None else pause_limit
        source = _source(from_, options, _ask_at(rest, trust_store), limit_s)
        if _is_url(to):
            target: MigrationTarget = NewCluster(to, options, containers)
        else:
            target = NewFolder(Path(to), containers, None if there is None else Tier2(*there))
        target.encrypts = encrypt
        _report(asyncio.run(_run(source, target, ahead=ahead, verify=verify)), to, tier2)


def _is_url(place: str) -> bool:
    """Return whether the text is a URL; InvalidArgumentError if it looks like a URL but names a folder."""
    from nadi.object_log.urls import ELSEWHERE

    scheme, _, rest = place.partition(":")
    if scheme in (*ELSEWHERE, "file") and not rest.startswith("//"):
        raise InvalidArgumentError(f"{place} isn't a URL: use {scheme}://…, or ./{place} for a folder of that name")
    return "://" in place


def _source(place: str, options: dict[str, str], ask: Ask, limit_s: float) -> MigrationSource:
    from nadi.migration.sources import ClusterStore, ServedFolder, StoppedFolder
    from nadi.segmentstore.data_dir import FolderLock

    if _is_url(place):
        return ClusterStore(place, options)
    try:
        FolderLock(Path(place), changes=False).release()
    except DataFolderLockedError:
        return ServedFolder(Path(place), ask, limit_s)
    return StoppedFolder(Path(place))


async def _planned(
    place: str, to: str, options: dict[str, str], containers: int | None, tier2: tuple[str, dict[str, str]] | None
) -> str:
    from nadi.migration import planning

    plan = await (planning.plan_of_cluster(place, options) if _is_url(place) else planning.plan_of_folder(Path(place)))
    if _is_url(to):
        has_begun = await planning.check_target_store(to, options, containers)
    else:
        has_begun = await planning.check_target_folder(Path(to), *(tier2 or (None, {})))
    state = f"an unfinished migration to {to} would be resumed" if has_begun else f"{to} is empty and can be the target"
    servers = f"\nstop its servers first: {', '.join(plan.servers)}" if plan.servers else ""
    return (
        f"{place} has {plural(plan.segments, 'segment')} in {plural(plan.containers, 'container')}, "
        f"{plan.bytes:,} bytes in {plural(plan.chunks, 'chunk')}, and {plan.logged_bytes:,} bytes in the log\n"
        f"{state}{servers}"
    )


async def _run(source: MigrationSource, target: MigrationTarget, *, ahead: bool, verify: bool) -> MigrationReport:
    from nadi.migration.migrate import Migration

    with bar("inspecting source and target", None) as report:
        async with source, target:
            return await Migration(source, target, _ProgressBar(report), verifies=verify).run(only_ahead=ahead)


async def _taken_back(place: str, given: list[str] | None) -> str:
    from nadi.migration.planning import undo_cluster, undo_folder

    options = store_options(place if _is_url(place) else "", given)
    to = await (undo_cluster(place, options) if _is_url(place) else undo_folder(Path(place), options))
    return f"{place} can be served again; {to} can't be served any longer"


def _report(report: MigrationReport, where: str, tier2: str | None) -> None:
    rate = report.stored_bytes / max(report.took_s, 1e-3) / 1e6
    say(
        f"copied {report.stored_bytes:,} bytes in {report.took_s:.1f} s ({rate:,.0f} MB/s); "
        f"{where} has {report.bytes:,} bytes in {report.chunks:,} chunks"
    )
    if not report.is_moved:
        say("the source stays in service: run this again without --ahead to move it")
        return
    if report.segments:
        say(f"moved {report.segments:,} segments")
    if report.paused_s:
        say(f"writers have been paused for {report.paused_s:.1f} s: stop the old server and start the new one")
    command = ["nadi", "up", "--store" if _is_url(where) else "--data", where]
    command += ["--tier2", tier2] if tier2 is not None else []
    say(f"start a server with `{shlex.join(command)}`")


def _ask_at(rest: str, trust_store: str | None) -> Ask:
    """Return a function that calls the REST API of the folder's server."""

    def ask(what: str, kind: type[Any], body: object = None, *, within_s: float = 10.0) -> Any:
        from nadi.cli.cluster.rest_client import RestClient

        client = RestClient(rest, trust_store)
        return client.request("POST", f"{client.first}/v1/migration/{what}", kind, body, within_s=within_s)

    return ask


class _ProgressBar:
    """Shows the current step of a migration as a progress bar."""

    def __init__(self, report: Callable[..., None] = lambda *_, **__: None) -> None:
        self._report, self._done = report, 0

    def begin(self, what: str, total_bytes: int) -> None:
        self._done = 0
        self._report(0, description=what, total=total_bytes or None)

    def done(self, size_bytes: int) -> None:
        self._done += size_bytes
        self._report(self._done)
