"""`nadi cluster`: `status` and `clean` read the store itself, `drain` and `rebalance` ask servers over REST."""

from __future__ import annotations

import contextlib
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from nadi.cli.admin.storing import StoreOptions, StoreUrl, log_options, store_options
from nadi.cli.amounts import age_s
from nadi.cli.options import DryRun, Rest, TrustStore
from nadi.cli.printing import Form, print_json, say, show
from nadi.defaults import DEFAULT_REST_PORT
from nadi.errors import InvalidArgumentError

if TYPE_CHECKING:
    from nadi.cli.cluster.rest_client import Servers
    from nadi.observe.cluster import ClusterReport

cluster_app = typer.Typer(no_args_is_help=True)
_POLL_S = 0.5
_DEFAULT_REST = f"http://127.0.0.1:{DEFAULT_REST_PORT}"


@cluster_app.command()
def status(store: StoreUrl, store_option: StoreOptions = None, form: Form = Form.TABLE) -> None:
    """Show servers and containers, read from the store itself: no server is needed for it. It takes some seconds."""
    import asyncio

    from nadi.cluster.admin.cluster_view import look, opened

    async def looked() -> ClusterReport:
        async with opened(store, store_options(store, store_option)) as shared:
            return await look(shared)

    if form is Form.CSV:
        raise InvalidArgumentError("a cluster has servers and containers, which aren't one table: use -o json")
    report = asyncio.run(looked())
    if form is Form.JSON:
        print_json(report)
        return
    say(f"cluster {report.cluster}, {len(report.containers)} containers")
    say(f"active controller: {report.controller or 'none now'}")
    say("")
    servers = [
        {
            "server": server.id,
            "state": server.state,
            "containers": len(server.containers),
            "bytes/s": round(server.bytes_per_s),
            "controller": server.controller,
            "REST": server.rest or None,
            "version": server.version,
            "since": datetime.fromtimestamp(server.started_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ"),
        }
        for server in report.servers
    ]
    show(servers, list(servers[0]) if servers else (), form=form, empty="No server is there.")
    say("")
    containers = [
        {
            "container": one.number,
            "state": one.state,
            "owner": one.owner or None,
            "epoch": one.epoch,
            "target": one.target or None,
            "log start": f"{one.log_epoch}/{one.log_number}",
            "log bytes": one.log_bytes,
            "snapshot bytes": None if one.snapshot is None else one.snapshot.size_bytes,
            "age": None if one.snapshot is None or one.snapshot.age_s is None else f"{one.snapshot.age_s:,.0f} s",
        }
        for one in report.containers
    ]
    show(containers, list(containers[0]), form=form)


@cluster_app.command()
def clean(
    store: StoreUrl,
    store_option: StoreOptions = None,
    log: Annotated[
        str | None, typer.Option(help="URL of its log, if that is elsewhere: nats://host:4222,…/STREAM.")
    ] = None,
    log_option: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Of the log, such as user=me; may be repeated.")
    ] = None,
    older: Annotated[str, typer.Option(help="Leave what is younger, such as 12h; 1h at least.")] = "1d",
    dry_run: DryRun = False,
) -> None:
    """Remove from the store what nobody needs: what killed and overtaken servers have left. Servers may run, and do it
    themselves once a day."""
    import asyncio

    from nadi.cluster.admin.cluster_view import opened, opened_log
    from nadi.cluster.admin.janitor import Cleaned, Janitor
    from nadi.limits import JANITOR_LEAST_OLDER_S

    async def cleaned() -> tuple[Cleaned, str]:
        """And which log wasn't looked at."""
        async with contextlib.AsyncExitStack() as stack:
            one = await stack.enter_async_context(opened(store, store_options(store, store_option)))
            own = None
            if log is not None:
                own = await stack.enter_async_context(opened_log(one, log, log_options(log_option)))
            parts = one.engine, one.registry, one.chunks, one.cluster.containers, one.runtime
            found = await Janitor(*parts, log=own, older_s=older_s, dry=dry_run).clean()
            return found, one.cluster.log.name if one.cluster.log is not None and own is None else ""

    older_s = age_s(older)
    if older_s < JANITOR_LEAST_OLDER_S:
        raise InvalidArgumentError(f"--older {older}: give {JANITOR_LEAST_OLDER_S / 3600:g}h at least")
    if log is None and log_option:
        raise InvalidArgumentError("--log-option is for a log that isn't in the store: give its --log, too")
    found, left_out = asyncio.run(cleaned())
    say(f"{'would remove' if dry_run else 'removed'} {found.objects:,} objects, {found.removed_bytes:,} bytes:")
    say(f"  frames of logs          {found.frames:,}")
    say(f"  objects of snapshots    {found.snapshot_objects:,}")
    say(f"  chunks                  {found.chunks:,}")
    say(f"  entries of dead servers {found.servers:,}")
    say(f"  proofs of starts        {found.proofs:,}")
    if found.kept_chunks:
        say(f"left {found.kept_chunks:,} chunks that aren't known to be needed: a later snapshot will tell")
    if left_out:
        say(f"the log is in {left_out}, and wasn't looked at: say where that is with --log")


@cluster_app.command()
def drain(
    server: Annotated[
        str, typer.Argument(help="Its id, or how that begins, or its address. [default: the one at --rest]")
    ] = "",
    rest: Rest = _DEFAULT_REST,
    trust_store: TrustStore = None,
    wait: Annotated[float, typer.Option(help="How long to wait for it to be done, in seconds.", min=0)] = 120.0,
) -> None:
    """Have a server hand all its containers over, and wait. It keeps running, without any, until it is stopped."""
    from nadi.cli.cluster.rest_client import Servers, named

    servers = Servers(rest, trust_store)
    drained = named(servers.report(), server)
    begun = servers.begin("drain", servers.rest_of(drained) if server else servers.first)
    _follow(servers, drained.id, f"server {begun.server}", len(begun.containers), wait)


@cluster_app.command()
def rebalance(rest: Rest = _DEFAULT_REST, trust_store: TrustStore = None) -> None:
    """Have all servers hand over what others are to have, without waiting for 30 s in which no server comes or goes."""
    from nadi.cli.cluster.rest_client import Servers

    servers = Servers(rest, trust_store)
    for one in servers.report().servers:
        if one.state == "alive":
            servers.begin("rebalance", servers.rest_of(one))
            say(f"server {one.id} hands over what others are to have; it has {len(one.containers)} containers now")


def _follow(servers: Servers, server: str, name: str, begun: int, wait_s: float) -> None:
    """Show how many containers a server still has, until it has none; exit with 1 if it takes too long."""
    until, shown = time.monotonic() + wait_s, -1
    while True:
        report = servers.report()
        left = next((len(one.containers) for one in report.servers if one.id == server), 0)
        if left != shown:
            say(f"{name} has {left} of {begun} containers left" if left else f"{name} has no containers any more")
            shown = left
        if not left:
            return
        if time.monotonic() >= until:
            say(f"{name} still has {left} containers after {wait_s:g} s: it continues; see `nadi cluster status`")
            raise typer.Exit(1)
        time.sleep(_POLL_S)
