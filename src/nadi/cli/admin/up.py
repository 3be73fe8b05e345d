"""`nadi up`: serve a data folder with one or several processes, or run one server of a cluster.

`nadi.config` defines the options; `settings.py` reads the settings file. All options are checked before anything
starts. Each server prints its addresses and notifies systemd when it is ready and when it stops.
"""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nadi.cli.admin.settings import Sources, read_settings
from nadi.cli.admin.storing import log_options, store_options
from nadi.cli.amounts import size_bytes
from nadi.cli.printing import INVALID, failure, say
from nadi.config import OPTIONS, ConfigOption, Mode, OptionKind, ServerConfig, ServerSecurity
from nadi.defaults import DEFAULT_CONTROLLER_PORT, DEFAULT_REST_PORT, DEFAULT_STORE_PORT
from nadi.errors import InvalidArgumentError, NadiError

if TYPE_CHECKING:
    from nadi.standalone.clustered import ClusterServer
    from nadi.standalone.server import Server

_STOPPING = "STOPPING=1\nSTATUS=stopping"
_PORTS = ("port", "store_port", "rest_port", "kafka_port")
_TYPES: dict[OptionKind, Any] = {
    OptionKind.TEXT: str,
    OptionKind.SIZE: str,
    OptionKind.NUMBER: int,
    OptionKind.SWITCH: bool,
    OptionKind.TEXTS: list[str],
}


@contextmanager
def _ending_on_errors(log_format: str = "text") -> Iterator[None]:
    """End the command with the message of nadi's errors, in the log format."""
    try:
        yield
    except NadiError as error:
        code = INVALID if isinstance(error, InvalidArgumentError) else 1
        if log_format != "json":
            raise failure(error, code) from None
        import logging

        logging.getLogger("nadi").critical("%s", error)
        raise typer.Exit(code) from None


def _take_file(context: typer.Context, file: Path | None) -> Path | None:
    if file is not None and not context.resilient_parsing:
        with _ending_on_errors():
            context.default_map = {**(context.default_map or {}), **read_settings(file)}
    return file


def _parameter(option: ConfigOption) -> inspect.Parameter:
    default: Any = None if option.kind in (OptionKind.TEXTS, OptionKind.SIZE) else option.default
    names = [f"--{option.key}", *(["-v"] if option.name == "verbose" else [])]
    more: dict[str, Any] = {"rich_help_panel": option.panel} if option.panel else {}
    if option.default_text:
        more |= {"show_default": option.default_text}
    if option.kind is OptionKind.NUMBER:
        more |= {"min": option.least, "max": option.most}
    if option.kind is OptionKind.TEXTS:
        more |= {"metavar": "KEY=VALUE"}
    kind: Any = _TYPES[option.kind]
    annotation: Any = Annotated[
        kind if default is not None else kind | None,
        typer.Option(*names, envvar=option.variable or None, help=option.help, **more),
    ]
    return inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def taking_options(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace a command's `**given` by these options of a server."""

    def with_options(command: Callable[..., None]) -> Callable[..., None]:
        *own, _ = inspect.signature(command, eval_str=True).parameters.values()
        first = [parameter for parameter in own if parameter.annotation is typer.Context]
        after = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own if parameter not in first]
        shown = [*first, *(_parameter(OPTIONS[name]) for name in names), *after]
        command.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
        return command

    return with_options


@taking_options(*OPTIONS)
def up(
    context: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option(
            help="TOML file with these options as settings (docs/configuration.md). Options override it.",
            is_eager=True,
            callback=_take_file,
        ),
    ] = None,
    print_config: Annotated[
        bool,
        typer.Option("--print-config", help="Check all settings, print them as a settings file, and exit."),
    ] = False,
    **given: Any,
) -> None:
    """Start a server for a data folder or a cluster's store. It runs until Ctrl-C or SIGTERM."""
    with _ending_on_errors():
        sources = Sources(context, config)
        values = _with_derived(given, sources)
        if not print_config:
            _choose_ports(values)
        checked = _checked(values, sources)
        if print_config:
            _check_security(checked.security, checked.host, checked.advertised_host)
            for line in ("# Settings of `nadi up`, and the source of each", *sources.as_toml(values)):
                say(line)
            return
        _set_up_logs_and_traces(checked)
    gc.disable()  # until `serve` is ready: it would look at the same modules again and again
    with _ending_on_errors(checked.log_format):
        _SERVE[checked.mode](checked)
    say("stopped")


def _with_derived(given: dict[str, Any], sources: Sources) -> dict[str, Any]:
    """Fill in values that derive from others."""
    values = dict(given)
    for name, usual in (("store_port", DEFAULT_STORE_PORT), ("rest_port", DEFAULT_REST_PORT)):
        if values[name] is None and values["port"] in (0, DEFAULT_CONTROLLER_PORT):
            values[name] = usual if values["port"] else 0
    if values["data"] is None and values["store"] is None:
        values["data"] = str(ServerConfig().folder)
    verbose, level = sources.rank("verbose"), sources.rank("log_level")
    if values["verbose"] and verbose == level:
        first, second = sources.name(OPTIONS["verbose"]), sources.name(OPTIONS["log_level"])
        raise InvalidArgumentError(f"{first} and {second} can't be combined: omit one of them")
    if values["verbose"] and verbose > level:  # -v is short for a log level; the source with higher precedence wins
        values["log_level"] = "INFO"
        sources.derive("log_level", "verbose")
    values |= {"verbose": False, "log_level": values["log_level"] or "WARNING"}
    return values


def _choose_ports(values: dict[str, Any]) -> None:
    """Choose free ports after the controller's for those not given; workers use consecutive ports."""
    from nadi.standalone.ports import free_ports

    workers = values["workers"] or 0
    counts = {"port": 1, "rest_port": 1 + workers, "store_port": max(1, workers), "kafka_port": max(1, workers)}
    taken = {port for name in _PORTS if (first := values[name]) for port in range(first, first + counts[name])}
    for name in ("rest_port", "store_port"):
        if values[name] is None:
            ports = free_ports(values["host"], values["port"], counts[name], taken)
            values[name] = ports[0] if ports else 0
            taken.update(ports)


def _checked(values: dict[str, Any], sources: Sources) -> ServerConfig:
    """Return the configuration; InvalidArgumentError names the option or setting that is invalid or conflicts with
    another."""

    def name(of: str) -> str:
        return sources.name(OPTIONS[of])

    read = {option: value for option, value in values.items() if value is not None}
    for of, url in (("store_options", "store"), ("tier2_options", "tier2")):
        read[of] = store_options(values[url] or "", values[of], name(of))
    read["log_options"] = log_options(values["log_options"], name("log_options"))
    if values["log_max_bytes"] is not None:
        with _naming(name("log_max_bytes")):
            read["log_max_bytes"] = size_bytes(values["log_max_bytes"])
    config = ServerConfig.of(read)
    config.check(sources.name)
    for of in ("store", "tier2", "log"):
        if values[of] is not None:
            with _naming(name(of)):
                _check_url(of, config)
    taken: dict[int, str] = {}
    for of in _PORTS:
        if (port := values[of]) and (other := taken.setdefault(port, of)) != of:
            raise InvalidArgumentError(f"{name(other)} and {name(of)} are both {port}: change one of them")
    return config


@contextmanager
def _naming(setting: str) -> Iterator[None]:
    """Name the setting in an InvalidArgumentError."""
    try:
        yield
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{setting}: {error}") from error


def _check_url(of: str, config: ServerConfig) -> None:
    """Raise InvalidArgumentError unless this setting is a URL of a store or log; nothing is opened."""
    from nadi.object_log.opening import log_name
    from nadi.object_log.urls import check_shared, folder_of

    if of == "log":
        log_name(str(config.log), **config.log_options)
    elif of == "store":
        check_shared(str(config.store))
        folder_of(str(config.store), **config.store_options)
    else:
        folder_of(str(config.tier2), **config.tier2_options)


def _check_security(security: ServerSecurity, host: str, advertised_host: str | None) -> None:
    """Raise InvalidArgumentError if a server would reject the address, or the files of users, keys and certificates."""
    from nadi.standalone.assembly import gate_of, tls_of

    security.check_address(host, advertised_host)
    tls_of(security, connects=True)
    if (gate := gate_of(security)) is not None:
        gate.close()


def _set_up_logs_and_traces(config: ServerConfig) -> None:
    """Configure logs and traces of this process and of the workers that it starts."""
    import os

    from nadi.observe import logs, traces

    level = str(config.log_level)
    logs.configure(level, config.log_format)
    os.environ.update({logs.ENVIRONMENT_LEVEL: level.upper(), logs.ENVIRONMENT_FORMAT: config.log_format})
    if config.workers is not None:
        os.environ[traces.ENVIRONMENT] = config.traces
    else:
        traces.turn_on_export(config.traces)


# --- serving ---------------------------------------------------------------------------------------------


def _serve_folder(config: ServerConfig) -> None:
    import uvloop

    from nadi.limits import STOP_S
    from nadi.standalone.assembly import serve
    from nadi.standalone.server import Server

    def ready(server: Server) -> None:
        say(f"nadi is serving {config.folder.resolve()}")
        if server.store.chunks.claim is not None:
            say(f"  chunks         {server.store.chunks.claim.url}")
        _say_ports(server)

    uvloop.run(serve(Server(config), ready, stopping=partial(_ending, STOP_S)))


def _serve_workers(config: ServerConfig) -> None:
    import signal
    import threading

    from nadi.naming import plural
    from nadi.observe.systemd import notify_systemd
    from nadi.standalone.workers import CONTAINERS_EACH, Workers

    until, data, count = threading.Event(), config.folder, config.workers or 1
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: until.set())
    if config.containers is None and not (data / "cluster.json").exists():
        config = replace(config, containers=CONTAINERS_EACH * count)
    with Workers(config) as workers:
        say(f"nadi is serving {data.resolve()} with {plural(count, 'worker')}")
        say(f"  controller     {workers.controller_uri}")
        say(f"  REST           {workers.rest_uri}")
        if port := config.rest_port:
            say(f"  workers        REST ports {port + 1} to {port + count}, for metrics")
        if workers.kafka_addresses:
            say(f"  Kafka          {','.join(workers.kafka_addresses)}")
        say("Press Ctrl-C to stop.")
        notify_systemd(f"READY=1\nSTATUS=serving at {workers.controller_uri}")
        workers.watch(until)
        notify_systemd(_STOPPING)


def _serve_store(config: ServerConfig) -> None:
    import uvloop

    from nadi.limits import CLUSTER_STOP_S
    from nadi.standalone.assembly import serve
    from nadi.standalone.clustered import ClusterServer

    def ready(server: ClusterServer) -> None:
        from nadi.naming import plural

        cluster = server.cluster
        say(f"nadi is serving {config.store}")
        containers = f"{len(server.store.containers)} of {plural(cluster.containers, 'container')}"
        say(f"  server         {server.id}, with {containers}")
        say(f"  cluster        {cluster.cluster}")
        _say_ports(server)

    uvloop.run(serve(ClusterServer(config), ready, stopping=partial(_ending, CLUSTER_STOP_S)))


_SERVE = {Mode.ALONE: _serve_folder, Mode.WORKERS: _serve_workers, Mode.CLUSTER: _serve_store}


def _say_ports(server: Server | ClusterServer) -> None:
    from nadi.observe.systemd import notify_systemd

    say(f"  controller     {server.controller_uri}")
    say(f"  REST           {server.rest_uri}")
    say(f"  segment store  {server.store_address[0]}:{server.store_address[1]}")
    if server.kafka_address:
        say(f"  Kafka          {server.kafka_address}")
    say("Press Ctrl-C to stop.")
    notify_systemd(f"READY=1\nSTATUS=serving at {server.controller_uri}")


def _ending(limit_s: float) -> None:
    """End this process within this time."""
    from nadi.observe.systemd import notify_systemd
    from nadi.shutdown import end_process_within

    notify_systemd(_STOPPING)
    end_process_within(limit_s)
