"""`nadi cluster`: `status` and `clean` read the store directly, `drain` and `rebalance` call servers over REST."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Annotated

import typer

from nadi.cli.admin.storing import StoreOptions, StoreUrl, log_options, store_options
from nadi.cli.amounts import age_s
from nadi.cli.options import DryRun, Rest, TrustStore
from nadi.cli.printing import Form, print_json, say, show, utc
from nadi.defaults import DEFAULT_REST_PORT
from nadi.errors import InvalidArgumentError
from nadi.naming import plural

if TYPE_CHECKING:
    from nadi.cli.cluster.rest_client import Servers
    from nadi.observe.cluster import ClusterReport

cluster_app = typer.Typer(no_args_is_help=True)
_POLL_S = 0.5
_DEFAULT_REST = f"http://127.0.0.1:{DEFAULT_REST_PORT}"


@cluster_app.command()
def status(store: StoreUrl, store_option: StoreOptions = None, form: Form = Form.TABLE) -> None:
    """Show a cluster's servers and containers.

    It reads the store directly, which takes a few seconds and works without a server.
    """
    import asyncio

    from nadi.cluster.admin.cluster_view import open_shared_store, read_report

    async def report_of_store() -> ClusterReport:
        async with open_shared_store(store, store_options(store, store_option)) as shared:
            return await read_report(shared)

    if form is Form.CSV:
        raise InvalidArgumentError("servers and containers don't fit in one CSV table: use -o json")
    report = asyncio.run(report_of_store())
    if form is Form.JSON:
        print_json(report)
        return
    say(f"cluster {report.cluster}, {plural(len(report.containers), 'container')}")
    say(f"active controller: {report.controller or 'none'}")
    say("")
    servers = [
        {
            "server": server.id,
            "state": server.state,
            "containers": len(server.containers),
            "bytes_per_s": round(server.bytes_per_s),
            "controller": server.controller,
            "rest": server.rest or None,
            "version": server.version,
            "since": utc(server.started_ms),
        }
        for server in report.servers
    ]
    show(servers, list(servers[0]) if servers else (), form=form, empty="No servers found.")
    say("")
    containers = [
        {
            "container": item.number,
            "state": item.state,
            "owner": item.owner or None,
            "epoch": item.epoch,
            "target": item.target or None,
            "log_start": f"{item.log_epoch}/{item.log_number}",
            "log_bytes": item.log_bytes,
            "snapshot_bytes": None if item.snapshot is None else item.snapshot.size_bytes,
            "age": None if item.snapshot is None or item.snapshot.age_s is None else f"{item.snapshot.age_s:,.0f} s",
        }
        for item in report.containers
    ]
    show(containers, list(containers[0]), form=form)


@cluster_app.command()
def clean(
    store: StoreUrl,
    store_option: StoreOptions = None,
    log: Annotated[
        str | None, typer.Option(help="URL of the write-ahead log if it isn't in the store: nats://host:4222,…/STREAM.")
    ] = None,
    log_option: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Option of the log, such as user=me; may be repeated.")
    ] = None,
    older: Annotated[str, typer.Option(help="Minimum age of objects to remove, such as 12h; at least 1h.")] = "1d",
    dry_run: DryRun = False,
) -> None:
    """Remove unreferenced objects that killed or superseded servers left in the store.

    Servers may be running. They do the same by themselves once a day.
    """
    import asyncio

    from nadi.cluster.admin.cluster_view import open_shared_store, opened_log
    from nadi.cluster.admin.janitor import CleanupResult, Janitor
    from nadi.limits import JANITOR_LEAST_OLDER_S

    async def cleaned() -> tuple[CleanupResult, str]:
        """Clean, and return the name of a log that was skipped, too."""
        async with contextlib.AsyncExitStack() as stack:
            options = store_options(store, store_option)
            shared = await stack.enter_async_context(open_shared_store(store, options, unlocks=True))
            separate_log = None
            if log is not None:
                separate_log = await stack.enter_async_context(opened_log(shared, log, log_options(log_option)))
            parts = shared.engine, shared.registry, shared.chunks, shared.cluster.containers, shared.runtime
            report = await Janitor(*parts, log=separate_log, older_s=older_s, dry=dry_run).clean()
            return report, shared.cluster.log.name if shared.cluster.log is not None and separate_log is None else ""

    older_s = age_s(older)
    if older_s < JANITOR_LEAST_OLDER_S:
        raise InvalidArgumentError(f"--older {older} is too short: the minimum is {JANITOR_LEAST_OLDER_S / 3600:g}h")
    if log is None and log_option:
        raise InvalidArgumentError("--log-option can't be used without --log: add the log's URL")
    report, skipped_log = asyncio.run(cleaned())
    say(f"{'would remove' if dry_run else 'removed'} {report.objects:,} objects, {report.removed_bytes:,} bytes:")
    say(f"  log frames              {report.frames:,}")
    say(f"  snapshot objects        {report.snapshot_objects:,}")
    say(f"  chunks                  {report.chunks:,}")
    say(f"  dead servers            {report.servers:,}")
    say(f"  start-up proofs         {report.proofs:,}")
    if report.retained_chunks:
        say(f"kept {report.retained_chunks:,} chunks that may be in use: run this again after the next snapshots")
    if skipped_log:
        say(f"skipped the log in {skipped_log}: give its URL with --log")


@cluster_app.command()
def drain(
    server: Annotated[
        str, typer.Argument(help="Id, prefix of the id, or address of the server. (default: the server at --rest)")
    ] = "",
    rest: Rest = _DEFAULT_REST,
    trust_store: TrustStore = None,
    wait: Annotated[float, typer.Option(help="How long to wait for completion, in seconds.", min=0)] = 120.0,
) -> None:
    """Move all containers of a server to other servers, and wait for completion.

    The server keeps running without containers until it is stopped.
    """
    from nadi.cli.cluster.rest_client import Servers, named

    servers = Servers(rest, trust_store)
    target = named(servers.report(), server)
    report = servers.begin("drain", servers.rest_of(target) if server else servers.first)
    _follow(servers, target.id, f"server {report.server}", len(report.containers), wait)


@cluster_app.command()
def rebalance(rest: Rest = _DEFAULT_REST, trust_store: TrustStore = None) -> None:
    """Rebalance containers now, without waiting until membership has been stable for 30 s."""
    from nadi.cli.cluster.rest_client import Servers

    servers = Servers(rest, trust_store)
    for server in servers.report().servers:
        if server.state == "alive":
            servers.begin("rebalance", servers.rest_of(server))
            say(f"server {server.id} is rebalancing; it has {plural(len(server.containers), 'container')} now")


def _follow(servers: Servers, server: str, name: str, total: int, wait_s: float) -> None:
    """Print the server's remaining containers until there are none; exit with code 1 on timeout."""
    until, shown = time.monotonic() + wait_s, -1
    while True:
        report = servers.report()
        remaining = next((len(each.containers) for each in report.servers if each.id == server), 0)
        if remaining != shown:
            say(f"{name} still has {remaining} of {plural(total, 'container')}" if remaining else f"{name} is drained")
            shown = remaining
        if not remaining:
            return
        if time.monotonic() >= until:
            left = plural(remaining, "container")
            say(f"{name} still has {left} after {wait_s:g} s: it continues; see `nadi cluster status`")
            raise typer.Exit(1)
        time.sleep(_POLL_S)
