"""`nadi up`: serve a data folder, or be one of the servers of a cluster.

The signature of `up` is the only definition of its options: settings of a file (`settings.py`) and their table in
docs/configuration.md are read from it. What goes together, and what doesn't, is checked before anything is started.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
from nadi.cli.printing import failure, say
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
    MOST_CONTAINERS,
)
from nadi.errors import InvalidArgumentError, NadiError

if TYPE_CHECKING:
    from nadi.cli.admin.chosen import Chosen
    from nadi.standalone.security import ServerSecurity

_panel: Any = {"rich_help_panel": "Security (docs/security.md)"}
_port: Any = {"min": 0, "max": 65535}
_WRONG_SETTINGS = 2  # the exit code, as for an option that doesn't exist: to start it again doesn't help
_OF_A_CLUSTER = ("cache", "log", "log_option", "log_profile", "tls_authority", "store_option")
_OF_ONE_SERVER = ("tier2", "tier2_option", "log_max")
_OF_BEARERS = ("bearer_issuer", "bearer_audience", "bearer_claim")
_PORTS = ("port", "store_port", "rest_port")


@contextmanager
def _errors_told(log_format: str = "text") -> Iterator[None]:
    """End the command with the message of nadi's errors, in the form of its other messages."""
    try:
        yield
    except NadiError as error:
        code = _WRONG_SETTINGS if isinstance(error, InvalidArgumentError) else 1
        if log_format != "json":
            raise failure(error, code) from None
        import logging

        logging.getLogger("nadi").critical("%s", error)
        raise typer.Exit(code) from None


def _take_file(context: typer.Context, file: Path | None) -> Path | None:
    if file is not None and not context.resilient_parsing:
        from nadi.cli.admin.chosen import take_settings

        with _errors_told():
            take_settings(context, file, up)
    return file


def up(
    context: typer.Context,
    data: Annotated[
        Path | None, typer.Option(help="Folder that holds all data; created if missing. [default: nadi-data]")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = DEFAULT_HOST,
    port: Annotated[
        int, typer.Option(help="The controller's port; 0 for any free ports.", **_port)
    ] = DEFAULT_CONTROLLER_PORT,
    store_port: Annotated[
        int | None,
        typer.Option(help="The segment store's port; 0 for any. [default: 12345, or a free one after --port]", **_port),
    ] = None,
    rest_port: Annotated[
        int | None,
        typer.Option(help="The REST interface's port; 0 for any. [default: 9091, or a free one after --port]", **_port),
    ] = None,
    containers: Annotated[
        int | None,
        typer.Option(
            help="Segment containers of a new folder, or cluster; can't be changed later. [default: 1, or 8]",
            min=1,
            max=MOST_CONTAINERS,
        ),
    ] = None,
    scaling: Annotated[
        str,
        typer.Option(help="How streams with a scaling policy follow their load: fast or classic."),
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
    config: Annotated[
        Path | None,
        typer.Option(
            help="TOML file of settings, which are these options (docs/configuration.md); the options come first.",
            is_eager=True,
            callback=_take_file,
        ),
    ] = None,
    print_config: Annotated[
        bool,
        typer.Option("--print-config", help="Check all settings, print them as a file of settings, and start nothing."),
    ] = False,
) -> None:
    """Serve a data folder, or a part of a cluster's store, until Ctrl-C or SIGTERM."""
    given = locals()
    from nadi.cli.admin.chosen import Chosen

    with _errors_told():
        chosen = Chosen(context, up, given)
        effective = _effective(chosen)
        if not print_config:
            _choose_ports(effective)
        _check_logs_and_traces(chosen, effective)
        start = _checked(chosen, effective)
        _check_logins(chosen, _security(effective))
        _check_ports(chosen, effective)
        if print_config:
            _print(chosen, effective)
            return
        _set_up_logs(effective["log_level"], log_format)
        _set_up_traces(trace, for_workers=workers is not None)
    with _errors_told(log_format):
        start()
    say("stopped")


def _effective(chosen: Chosen) -> dict[str, Any]:
    """The values with what follows from others, where they say nothing."""
    values = dict(chosen.values)
    for name, usual in (("store_port", DEFAULT_STORE_PORT), ("rest_port", DEFAULT_REST_PORT)):
        if values[name] is None and values["port"] in (0, DEFAULT_CONTROLLER_PORT):
            values[name] = usual if values["port"] else 0
    if values["data"] is None and values["store"] is None:
        values["data"] = Path("nadi-data")
    if values["verbose"]:
        _be_verbose(chosen, values)
    elif values["log_level"] is None:
        values["log_level"] = "WARNING"
    return values


def _choose_ports(values: dict[str, Any]) -> None:
    """Give what was left open the free ports after the controller's; each worker has ports of its own in a row."""
    from nadi.standalone.ports import free_ports

    workers = values["workers"] or 0
    counts = {"port": 1, "rest_port": 1 + workers, "store_port": max(1, workers)}
    taken = {port for name in _PORTS if (first := values[name]) for port in range(first, first + counts[name])}
    for name in ("rest_port", "store_port"):
        if values[name] is None:
            ports = free_ports(values["host"], values["port"], counts[name], taken)
            values[name] = ports[0] if ports else 0
            taken.update(ports)


def _be_verbose(chosen: Chosen, values: dict[str, Any]) -> None:
    """It is short for a level: of the two, what comes first holds."""
    verbose, level = chosen.rank("verbose"), chosen.rank("log_level")
    if verbose == level:
        raise InvalidArgumentError(
            f"{chosen.told('verbose')} has no effect beside {chosen.told('log_level')}: leave one of them out"
        )
    if verbose > level:
        values["log_level"] = "INFO"
        chosen.has_it_from("log_level", "verbose")
    values["verbose"] = False


def _check_logs_and_traces(chosen: Chosen, effective: dict[str, Any]) -> None:
    from nadi.observe import logs, traces

    logs.check(effective["log_level"], effective["log_format"], chosen.told("log_level"), chosen.told("log_format"))
    traces.check(effective["trace"], chosen.told("trace"))


def _checked(chosen: Chosen, effective: dict[str, Any]) -> Callable[[], None]:
    """What starts what was chosen. InvalidArgumentError: there is something wrong with it."""
    from nadi.cli.admin import serving
    from nadi.controller.scaling.profile import profile_of

    absent = chosen.check_absent
    with chosen.checking("scaling"):
        profile_of(effective["scaling"])
    security, doors = _security(effective), _doors(effective)
    doors["security"] = security
    data, store, workers, cache = (effective[name] for name in ("data", "store", "workers", "cache"))
    if store is None and workers is not None:
        absent(_without(_OF_A_CLUSTER, "log_profile", "cache"), "is for a server of a cluster")
        absent(["signing_key"], "isn't for workers, whose key is in the folder: leave it out")
        absent(_OF_ONE_SERVER, "is for one server of a data folder: leave --workers out")
        profile = effective["log_profile"]
        _check_profile(chosen, profile, "file:")
        return lambda: serving.serve_workers(workers, data, doors, cache, profile)
    if store is None:
        absent(_OF_A_CLUSTER, "is for a server of a cluster: give its --store, too, or leave this out")
        doors |= _tiers(chosen)
        return lambda: serving.serve_folder(data, doors)
    absent(["workers"], "is for a folder: start several servers for one --store instead")
    absent(_OF_ONE_SERVER, "is for a data folder: a cluster has its chunks, and its log, in its --store")
    absent(["data", "signing_key"], "is for a data folder, and a cluster has all of that in its --store: leave it out")
    if security.tls_authority is not None and security.tls_certificate is None:
        raise InvalidArgumentError(
            f"{chosen.told('tls_authority')} is for servers with TLS: give --tls-cert and --tls-key, too"
        )
    log = effective["log"]
    if log is None:
        absent(["log_option"], "is for a log that isn't in the store: give its --log, too")
    _check_profile(chosen, effective["log_profile"], log or store)
    settings = doors | {
        "options": store_options(store, effective["store_option"], chosen.told("store_option")),
        "log": log or "",
        "log_options": log_options(effective["log_option"], chosen.told("log_option")),
        "cache": cache,
        "profile": effective["log_profile"],
    }
    return lambda: serving.serve_store(store, settings)


def _check_logins(chosen: Chosen, security: ServerSecurity) -> None:
    if security.bearer_keys is None:
        chosen.check_absent(_OF_BEARERS, "is for bearer tokens: give --bearer-keys, too")
    if not security.asks:
        why = "is for servers whose users log in: give --users-file, too"
        chosen.check_absent(["signing_key", "token_lifetime"], why)


def _check_ports(chosen: Chosen, effective: dict[str, Any]) -> None:
    taken: dict[int, str] = {}
    for name in _PORTS:
        port = effective[name]
        other = taken.setdefault(port, name)
        if other != name and port:
            both = f"{chosen.told(other)} and {chosen.told(name)}"
            raise InvalidArgumentError(f"{both} are both {port}: give one of them another port")


def _without(names: tuple[str, ...], *others: str) -> list[str]:
    return [name for name in names if name not in others]


def _security(effective: dict[str, Any]) -> ServerSecurity:
    from nadi.standalone.security import ServerSecurity

    same = (
        "tls_key", "users_file", "bearer_keys", "bearer_issuer", "bearer_audience", "bearer_claim", "insecure_public",
        "tls_authority",
    )  # fmt: skip
    return ServerSecurity(
        tls_certificate=effective["tls_cert"],
        signing_key_file=effective["signing_key"],
        token_lifetime_s=effective["token_lifetime"],
        **{name: effective[name] for name in same},
    )


def _doors(effective: dict[str, Any]) -> dict[str, Any]:
    same = ("host", "store_port", "rest_port", "containers", "advertised_host", "scaling")
    return {"controller_port": effective["port"]} | {name: effective[name] for name in same}


def _tiers(chosen: Chosen) -> dict[str, Any]:
    """What `Server` is told of its log and its chunks."""
    tier2, options, log_max = (chosen.values[name] for name in _OF_ONE_SERVER)
    if tier2 is None:
        chosen.check_absent(["tier2_option"], "is for a store of chunks: give its --tier2, too")
    told: dict[str, Any] = {}
    if log_max is not None:
        from nadi.standalone.tiers import log_bound

        with chosen.checking("log_max"):
            told["log_max_bytes"] = log_bound(size_bytes(log_max))
    if tier2 is not None:
        told |= {"tier2": tier2, "tier2_options": store_options(tier2, options, chosen.told("tier2_option"))}
    return told


def _check_profile(chosen: Chosen, name: str | None, url: str) -> None:
    from nadi.standalone.profiles import profile_named

    with chosen.checking("log_profile"):
        profile_named(name, url)


def _print(chosen: Chosen, effective: dict[str, Any]) -> None:
    """What a start would find wrong without looking at files, ports and stores is found before."""
    security = _security(effective)
    if (security.tls_certificate is None) != (security.tls_key is None):
        raise InvalidArgumentError("TLS needs both a certificate and its private key: --tls-cert and --tls-key")
    security.check_address(effective["host"], effective["advertised_host"])
    lines = list(chosen.as_toml(effective))
    say("# The settings of `nadi up`, and where each comes from")
    for line in lines:
        say(line)


def _set_up_logs(level: str, form: str) -> None:
    """For this process, and for workers that it will start."""
    import os

    from nadi.observe import logs

    logs.set_up(level, form)
    os.environ.update({logs.ENVIRONMENT_LEVEL: level.upper(), logs.ENVIRONMENT_FORMAT: form})


def _set_up_traces(kind: str, *, for_workers: bool) -> None:
    import os

    from nadi.observe import traces

    if for_workers:
        os.environ[traces.ENVIRONMENT] = kind
    else:
        traces.turn_on_export(kind)
