"""`nadi up`: serve a data folder, or be one of the servers of a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nadi.cli.admin.storing import (
    OPTION_HELP,
    PANEL,
    STORE_HELP,
    TIER2_HELP,
    TIER2_PANEL,
    Tier2Options,
    log_options,
    store_options,
)
from nadi.cli.amounts import size_bytes
from nadi.cli.printing import errors_told, failure, say
from nadi.defaults import (
    DEFAULT_CLAIM,
    DEFAULT_CONTROLLER_PORT,
    DEFAULT_HOST,
    DEFAULT_LOG_FORMAT,
    DEFAULT_REST_PORT,
    DEFAULT_SCALING,
    DEFAULT_STORE_PORT,
    DEFAULT_TOKEN_LIFETIME_S,
    DEFAULT_TRACES,
)
from nadi.errors import InvalidArgumentError, NadiError

if TYPE_CHECKING:
    from nadi.standalone.clustered import ClusterServer
    from nadi.standalone.server import Server

_DEFAULT_DATA = Path("nadi-data")
_panel: Any = {"rich_help_panel": "Security (docs/security.md)"}


def up(
    data: Annotated[
        Path | None, typer.Option(help="Folder that holds all data; created if missing. [default: nadi-data]")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = DEFAULT_HOST,
    port: Annotated[int, typer.Option(help="The controller's port; 0 for any free ports.")] = DEFAULT_CONTROLLER_PORT,
    store_port: Annotated[
        int | None, typer.Option(help="The segment store's port; 0 for any. [default: 12345, or any with --port 0]")
    ] = None,
    rest_port: Annotated[
        int | None, typer.Option(help="The REST interface's port; 0 for any. [default: 9091, or any with --port 0]")
    ] = None,
    containers: Annotated[
        int | None,
        typer.Option(help="Segment containers of a new folder, or cluster; can't be changed later. [default: 1, or 8]"),
    ] = None,
    scaling: Annotated[
        str,
        typer.Option(help="How streams with a scaling policy follow their load: classic or fast."),
    ] = DEFAULT_SCALING,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log more: --log-level INFO.")] = False,
    log_level: Annotated[
        str | None,
        typer.Option(help="Which messages are shown: DEBUG, INFO, WARNING, ERROR or CRITICAL. [default: WARNING]"),
    ] = None,
    log_format: Annotated[
        str, typer.Option(help="How: text, or json, one object a line (docs/operations.md).")
    ] = DEFAULT_LOG_FORMAT,
    trace: Annotated[
        str, typer.Option("--traces", help="Where spans of writes and reads go: none, or otlp (docs/traces.md).")
    ] = DEFAULT_TRACES,
    advertised_host: Annotated[
        str | None, typer.Option(help="Name or address that clients should connect to. [default: --host]")
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(help="PEM file of the certificate; makes all ports speak TLS.", **_panel)
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM file of the certificate's private key.", **_panel)] = None,
    users_file: Annotated[
        Path | None, typer.Option(help="Who may log in with a password; see `nadi passwd`.", **_panel)
    ] = None,
    bearer_keys: Annotated[
        str | None, typer.Option(help="PEM or JWKS file, or https address of a JWKS, for bearer tokens.", **_panel)
    ] = None,
    bearer_issuer: Annotated[str, typer.Option(help="The `iss` that bearer tokens must have.", **_panel)] = "",
    bearer_audience: Annotated[str, typer.Option(help="The `aud` that bearer tokens must have.", **_panel)] = "",
    bearer_claim: Annotated[str, typer.Option(help="The claim that holds the permissions.", **_panel)] = DEFAULT_CLAIM,
    signing_key: Annotated[
        Path | None, typer.Option(help="Key that signs delegation tokens. [default: one in the data folder]", **_panel)
    ] = None,
    token_lifetime: Annotated[
        int, typer.Option(help="How long a delegation token is valid, in seconds.", min=1, **_panel)
    ] = DEFAULT_TOKEN_LIFETIME_S,
    insecure_public: Annotated[
        bool,
        typer.Option("--insecure-public", help="Serve everybody on a public address, no login.", **_panel),
    ] = False,
    workers: Annotated[
        int | None,
        typer.Option(
            help="So many processes serve the folder, to use more than one core (docs/cluster.md); always, once a "
            "folder was begun so.",
            min=1,
        ),
    ] = None,
    tier2: Annotated[str | None, typer.Option(envvar="NADI_TIER2", help=TIER2_HELP, **TIER2_PANEL)] = None,
    tier2_option: Tier2Options = None,
    log_max: Annotated[
        str | None,
        typer.Option(
            help="What a container's log may hold while tier 2 takes nothing, such as 20GiB; then writers wait. "
            "[default: 4GiB]",
            **TIER2_PANEL,
        ),
    ] = None,
    store: Annotated[str | None, typer.Option(envvar="NADI_STORE", help=STORE_HELP, **PANEL)] = None,
    store_option: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help=OPTION_HELP, **PANEL)] = None,
    cache: Annotated[
        Path | None,
        typer.Option(help="Folder for copies, which may be lost. [default: a temporary one]", **PANEL),
    ] = None,
    log_profile: Annotated[
        str | None,
        typer.Option(
            help="How long acknowledgements may take, for how few puts: latency, balanced or cost. "
            "[default: balanced; latency for a folder]",
            **PANEL,
        ),
    ] = None,
    log: Annotated[
        str | None,
        typer.Option(help="URL of a log elsewhere: nats://host:4222,…/STREAM (docs/jetstream.md).", **PANEL),
    ] = None,
    log_option: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Of the log, such as replicas=3; may be repeated.", **PANEL),
    ] = None,
    tls_authority: Annotated[
        Path | None,
        typer.Option(
            help="PEM file of the certificates by which servers trust each other. [default: the system's]", **PANEL
        ),
    ] = None,
) -> None:
    """Serve a data folder, or a part of a cluster's store, until Ctrl-C or SIGTERM."""
    from nadi.standalone.security import ServerSecurity

    with errors_told():
        _set_up_logs(log_level, log_format, verbose=verbose)
        _set_up_traces(trace, for_workers=workers is not None)
    if store_port is None:
        store_port = 0 if port == 0 else DEFAULT_STORE_PORT
    if rest_port is None:
        rest_port = 0 if port == 0 else DEFAULT_REST_PORT
    security = ServerSecurity(
        tls_certificate=tls_cert,
        tls_key=tls_key,
        users_file=users_file,
        bearer_keys=bearer_keys,
        bearer_issuer=bearer_issuer,
        bearer_audience=bearer_audience,
        bearer_claim=bearer_claim,
        signing_key_file=signing_key,
        token_lifetime_s=token_lifetime,
        insecure_public=insecure_public,
        tls_authority=tls_authority,
    )
    doors: dict[str, Any] = {
        "host": host,
        "store_port": store_port,
        "controller_port": port,
        "rest_port": rest_port,
        "containers": containers,
        "advertised_host": advertised_host,
        "security": security,
        "scaling": scaling,
    }
    of_a_cluster = {
        "--cache": cache,
        "--log": log,
        "--log-option": log_option,
        "--log-profile": log_profile,
        "--tls-authority": tls_authority,
        "--store-option": store_option,
    }
    of_one_server = {"--tier2": tier2, "--tier2-option": tier2_option, "--log-max": log_max}
    of_a_folder = {"--data": data, "--signing-key": signing_key}
    with _end_told(log_format):
        if store is None and workers is not None:
            _check_absent(of_a_cluster | {"--log-profile": None, "--cache": None}, "is for a server of a cluster")
            _check_absent({"--signing-key": signing_key}, "isn't for workers, whose key is in the folder: leave it out")
            _check_absent(of_one_server, "is for one server of a data folder: leave --workers out")
            _serve_workers(workers, data or _DEFAULT_DATA, doors, cache, log_profile)
        elif store is None:
            _check_absent(of_a_cluster, "is for a server of a cluster: give its --store, too, or leave this out")
            _serve_folder(data or _DEFAULT_DATA, doors | _tiers(tier2, tier2_option, log_max))
        else:
            _check_absent({"--workers": workers}, "is for a folder: start several servers for one --store instead")
            _check_absent(of_one_server, "is for a data folder: a cluster has its chunks, and its log, in its --store")
            _check_absent(
                of_a_folder, "is for a data folder, and a cluster has all of that in its --store: leave it out"
            )
            if tls_authority is not None and tls_cert is None:
                raise InvalidArgumentError(
                    "--tls-authority is for servers with TLS: give --tls-cert and --tls-key, too"
                )
            if log is None:
                _check_absent({"--log-option": log_option}, "is for a log that isn't in the store: give its --log, too")
            settings = {
                "options": store_options(store, store_option),
                "log": log or "",
                "log_options": log_options(log_option),
                "cache": cache,
                "profile": log_profile,
            }
            _serve_store(store, settings | doors)
    say("stopped")


def _tiers(tier2: str | None, options: list[str] | None, log_max: str | None) -> dict[str, Any]:
    """What `Server` is told of its log and its chunks."""
    if tier2 is None:
        _check_absent({"--tier2-option": options}, "is for a store of chunks: give its --tier2, too")
    told: dict[str, Any] = {} if log_max is None else {"log_max_bytes": size_bytes(log_max)}
    if tier2 is not None:
        told |= {"tier2": tier2, "tier2_options": store_options(tier2, options, "--tier2-option")}
    return told


def _set_up_logs(level: str | None, form: str, *, verbose: bool) -> None:
    """For this process, and for workers that it will start."""
    import os

    from nadi.observe import logs

    if verbose and level is not None:
        raise InvalidArgumentError("--verbose has no effect beside --log-level: leave one of them out")
    chosen = level or ("INFO" if verbose else "WARNING")
    logs.set_up(chosen, form)
    os.environ.update({logs.ENVIRONMENT_LEVEL: chosen.upper(), logs.ENVIRONMENT_FORMAT: form})


@contextmanager
def _end_told(log_format: str) -> Iterator[None]:
    """End the command with the message of nadi's errors, in the form of its other messages."""
    try:
        yield
    except NadiError as error:
        if log_format != "json":
            raise failure(error) from None
        import logging

        logging.getLogger("nadi").critical("%s", error)
        raise typer.Exit(1) from None


def _set_up_traces(kind: str, *, for_workers: bool) -> None:
    import os

    from nadi.observe import traces

    if for_workers:
        traces.check(kind)
        os.environ[traces.ENVIRONMENT] = kind
    else:
        traces.turn_on_export(kind)


def _check_absent(given: dict[str, Any], why: str) -> None:
    for name, value in given.items():
        if value:
            raise InvalidArgumentError(f"{name} {why}")


def _serve_folder(data: Path, doors: dict[str, Any]) -> None:
    from nadi.segmentstore.state.file.check import look_ahead

    look_ahead(data)
    import uvloop

    from nadi.standalone.server import Server, serve

    def ready(server: Server) -> None:
        say(f"nadi is serving {data.resolve()}")
        if server.store.chunks.claim is not None:
            say(f"  chunks         {server.store.chunks.claim.url}")
        _say_doors(server)

    uvloop.run(serve(Server(data, **doors), ready))


def _serve_workers(count: int, data: Path, doors: dict[str, Any], cache: Path | None, log_profile: str | None) -> None:
    import signal
    import threading

    from msgspec.structs import replace

    from nadi.standalone.embedded import Settings
    from nadi.standalone.workers import CONTAINERS_EACH, Workers

    until = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: until.set())
    settings = Settings(**doors, profile=log_profile)
    if settings.containers is None and not (data / "cluster.json").exists():
        settings = replace(settings, containers=CONTAINERS_EACH * count)
    with Workers(count, data, settings, cache) as workers:
        say(f"nadi is serving {data.resolve()}, with {count} workers")
        say(f"  controller     {workers.controller_uri}")
        say(f"  REST           {workers.rest_uri}")
        if settings.rest_port:
            say(f"  of each        REST ports {settings.rest_port + 1} to {settings.rest_port + count}, for its metrics")
        say("Press Ctrl-C to stop.")
        workers.watch(until)


def _serve_store(url: str, settings: dict[str, Any]) -> None:
    import uvloop

    from nadi.standalone.clustered import ClusterServer
    from nadi.standalone.server import serve

    def ready(server: ClusterServer) -> None:
        cluster = server.cluster
        say(f"nadi is serving {url}")
        say(f"  server         {server.id}, with {len(server.store.containers)} of {cluster.containers} containers now")
        say(f"  cluster        {cluster.cluster}")
        _say_doors(server)

    uvloop.run(serve(ClusterServer(url, **settings), ready))


def _say_doors(server: Server | ClusterServer) -> None:
    say(f"  controller     {server.controller_uri}")
    say(f"  REST           {server.rest_uri}")
    say(f"  segment store  {server.store_address[0]}:{server.store_address[1]}")
    say("Press Ctrl-C to stop.")
