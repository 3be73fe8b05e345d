"""The options of a server, each defined once, as a field of `ServerConfig` or of its `ServerSecurity`.

The options of `nadi up`, the keys of its file, the environment variables, `--print-config`, the tables of
docs/configuration.md, the arguments of servers and what a parent passes to a child process are derived from these
fields. Callers: `cli.admin`, `standalone`. `nadi up --help` imports this module, so it imports no server; nor limits
as it is loaded, for those raise where NADI_LIMITS is wrong.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum, Flag, auto
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from nadi.defaults import (
    DEFAULT_CLAIM,
    DEFAULT_CONTROLLER_PORT,
    DEFAULT_HOST,
    DEFAULT_LOG_FORMAT,
    DEFAULT_SCALING,
    DEFAULT_TOKEN_LIFETIME_S,
    DEFAULT_TRACES,
    LOG_FORMATS,
    LOG_LEVELS,
    MOST_CONTAINERS,
    TRACE_KINDS,
)
from nadi.errors import InvalidArgumentError

if TYPE_CHECKING:
    _PathText = str | os.PathLike[str]  # accepted
else:
    _PathText = str  # stored

log = logging.getLogger(__name__)

WAL_PROFILES_S = {"latency": 0.0, "balanced": 0.05, "cost": 0.25}  # least time between the starts of two frames
_MOST_WORKERS = 64
_MOST_PORT = 65_535
_SECURITY, _TIER2, _CLUSTER = (
    f"{title} (docs/{page}.md)"
    for title, page in (("Security", "security"), ("Chunks elsewhere", "tier2"), ("A cluster", "cluster"))
)


class OptionKind(Enum):
    """The value of an option in a file; the text names it in errors and documents."""

    TEXT = "a text"
    NUMBER = "a whole number"
    SIZE = "a size, such as 20GiB"
    SWITCH = "true or false"
    TEXTS = "a list of texts"


class Mode(Flag):
    """What a server is: one of a data folder, several processes of one folder, or a member of a cluster."""

    ALONE = auto()
    WORKERS = auto()
    CLUSTER = auto()
    FOLDER = ALONE | WORKERS
    MEMBER = WORKERS | CLUSTER
    ALL = FOLDER | CLUSTER


_SCOPES = {
    Mode.ALONE: "is for one server of a data folder: leave out {workers} and {store}, or this",
    Mode.FOLDER: "is for a data folder: leave out {store}, or this",
    Mode.WORKERS: "is for a data folder: start several servers of one {store} instead",
    Mode.MEMBER: "is for a server of a cluster: give its {store}, too, or leave this out",
    Mode.CLUSTER: "is for a server of a cluster: give its {store}, too, or leave this out",
}
_KINDS = {"int": OptionKind.NUMBER, "bool": OptionKind.SWITCH, "dict": OptionKind.TEXTS}  # by the declared type
_TYPES = {
    OptionKind.TEXT: str,
    OptionKind.NUMBER: int,
    OptionKind.SIZE: int,
    OptionKind.SWITCH: bool,
    OptionKind.TEXTS: dict,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigOption:
    """One option. name: of the field; key: of the command line and of a file. default_text: what holds without a
    value, if the default doesn't say it. variable: of the environment. modes: the servers it is for. needs: names of
    options without any of which it has no effect."""

    name: str
    key: str
    kind: OptionKind
    default: Any
    help: str
    default_text: str = ""
    variable: str = ""
    panel: str = ""
    least: int | None = None
    most: int | None = None
    choices: tuple[str, ...] = ()
    modes: Mode = Mode.ALL
    needs: tuple[str, ...] = ()

    @property
    def allowed(self) -> str:
        """The values it takes, in words."""
        if self.kind is not OptionKind.NUMBER or self.least is None:
            return self.kind.value
        limits = f", {self.least} or more" if self.most is None else f" from {self.least} to {self.most}"
        return f"{self.kind.value}{limits}"


def _option(default: Any, help: str, **more: Any) -> Any:
    """A field with its option; more: fields of `ConfigOption`, of which name, key and kind follow from the field."""
    metadata = {"option": {"default": default, "help": help, **more}}
    return (
        field(default_factory=dict, metadata=metadata) if default == {} else field(default=default, metadata=metadata)
    )


def _check_types(values: Any, options: Mapping[str, ConfigOption]) -> None:
    """Store paths as text. InvalidArgumentError: a value is of another type than its field."""
    for option in options.values():
        value = getattr(values, option.name)
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
            object.__setattr__(values, option.name, value)
        if value is not None and type(value) is not _TYPES[option.kind]:
            raise InvalidArgumentError(f"{option.name} can't be {value!r}: it is {option.allowed}")


@dataclass(frozen=True, slots=True)
class ServerSecurity:
    """TLS, and who may log in; all off unless given. Files are texts or path-like, and kept as texts; no field is a
    secret.

    tls_certificate, tls_key: PEM files; with them all ports speak TLS. tls_ca: PEM file by which servers of a
    cluster check each other's certificates; None is the system's. users_file: see nadi.access.users.
    bearer_*: see nadi.access.bearer. signing_key_file: of delegation tokens; None is one of the data
    folder's own. insecure_public: serve everybody who can reach a public address, with all rights. Without
    authentication and without it, a server listens on loopback only.
    """

    tls_certificate: _PathText | None = _option(
        None, "PEM file of the certificate; makes all ports speak TLS.", key="tls-cert", panel=_SECURITY
    )
    tls_key: _PathText | None = _option(None, "PEM file of the certificate's private key.", panel=_SECURITY)
    users_file: _PathText | None = _option(None, "Who may log in with a password; see `nadi passwd`.", panel=_SECURITY)
    bearer_keys: _PathText | None = _option(
        None, "PEM or JWKS file, or https address of a JWKS, for bearer tokens.", panel=_SECURITY
    )
    bearer_issuer: str = _option("", "The `iss` that bearer tokens must have.", panel=_SECURITY, needs=("bearer_keys",))
    bearer_audience: str = _option(
        "", "The `aud` that bearer tokens must have.", panel=_SECURITY, needs=("bearer_keys",)
    )
    bearer_claim: str = _option(
        DEFAULT_CLAIM, "The claim that holds the permissions.", panel=_SECURITY, needs=("bearer_keys",)
    )
    signing_key_file: _PathText | None = _option(
        None,
        "Key that signs delegation tokens.",
        key="signing-key",
        default_text="one in the data folder",
        panel=_SECURITY,
        modes=Mode.ALONE,
        needs=("users_file", "bearer_keys"),
    )
    token_lifetime_s: int = _option(
        DEFAULT_TOKEN_LIFETIME_S,
        "How long a delegation token is valid, in seconds.",
        key="token-lifetime",
        panel=_SECURITY,
        least=1,
        needs=("users_file", "bearer_keys"),
    )
    insecure_public: bool = _option(False, "Serve everybody on a public address, no login.", panel=_SECURITY)
    tls_ca: _PathText | None = _option(
        None,
        "PEM file of the certificates by which servers trust each other.",
        default_text="the system's",
        panel=_CLUSTER,
        modes=Mode.CLUSTER,
        needs=("tls_certificate",),
    )

    def __post_init__(self) -> None:
        _check_types(self, _SECURITY_OPTIONS)

    @property
    def asks(self) -> bool:
        """Whether callers must say who they are."""
        return self.users_file is not None or self.bearer_keys is not None

    def check_address(self, host: str, advertised_host: str | None) -> None:
        """InvalidArgumentError if a server with these settings should not listen there, or if clients, who are told
        `advertised_host` or else `host`, could not connect to that."""
        if is_loopback(host):
            return
        if not self.asks and not self.insecure_public:
            raise InvalidArgumentError(
                f"{host or 'every address'} is not loopback, and without authentication whoever reaches it could read "
                "and delete everything: give --users-file (and --tls-cert, --tls-key), listen on 127.0.0.1, or say "
                "--insecure-public to serve everybody"
            )
        if self.asks and self.tls_certificate is None:
            log.warning("passwords and tokens cross the network to %s readable: give --tls-cert and --tls-key", host)
        if advertised_host is None and is_any_address(host):
            raise InvalidArgumentError("clients can't connect to every address: give one of them as --advertised-host")


@dataclass(frozen=True, slots=True)
class SharedPorts:
    """Ports at which several servers of one machine listen together, beside their own: a client that connects gets any
    of them. rest: None is no REST."""

    controller: int
    rest: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """What a server serves, and how: see the help of each option.

    Ports of 0 are any free ones. rest_port: None is no REST. store_options, log_options, tier2_options: such as
    `endpoint`, beside what the environment of the store's library says. shared: further ports, for workers. drains:
    whether a server of a cluster hands over what it has before it stops.
    """

    data: _PathText | None = _option(
        None, "Folder that holds all data; created if missing.", default_text="nadi-data", modes=Mode.FOLDER
    )
    host: str = _option(DEFAULT_HOST, "Address to listen on.")
    port: int = _option(
        DEFAULT_CONTROLLER_PORT, "The controller's port; 0 for any free ports.", least=0, most=_MOST_PORT
    )
    store_port: int | None = _option(
        None,
        "The segment store's port; 0 for any.",
        default_text="12345, or a free one after --port",
        least=0,
        most=_MOST_PORT,
    )
    rest_port: int | None = _option(
        None,
        "The REST interface's port; 0 for any.",
        default_text="9091, or a free one after --port",
        least=0,
        most=_MOST_PORT,
    )
    containers: int | None = _option(
        None,
        "Segment containers of a new folder, or cluster; can't be changed later.",
        default_text="1, or 8",
        least=1,
        most=MOST_CONTAINERS,
    )
    scaling: str = _option(
        DEFAULT_SCALING,
        "How streams with a scaling policy follow their load: fast or classic.",
        choices=("fast", "classic"),
    )
    verbose: bool = _option(False, "Log more: --log-level INFO.")
    log_level: str | None = _option(
        None,
        "Which messages are shown: DEBUG, INFO, WARNING, ERROR or CRITICAL.",
        default_text="WARNING",
        choices=LOG_LEVELS,
    )
    log_format: str = _option(
        DEFAULT_LOG_FORMAT, "How: text, or json, one object a line (docs/operations.md).", choices=LOG_FORMATS
    )
    traces: str = _option(
        DEFAULT_TRACES, "Where spans of writes and reads go: none, or otlp (docs/monitoring.md).", choices=TRACE_KINDS
    )
    advertised_host: str | None = _option(
        None, "Name or address that clients should connect to.", default_text="--host"
    )
    security: ServerSecurity = field(default_factory=ServerSecurity)
    workers: int | None = _option(
        None,
        "So many processes serve the folder, to use more than one core (docs/cluster.md); always, once a folder was "
        "begun so.",
        least=1,
        most=_MOST_WORKERS,
        modes=Mode.WORKERS,
    )
    tier2: str | None = _option(
        None,
        "URL of the store that keeps the folder's chunks: s3://bucket/prefix, gs://…, az://…, hdfs://host:port/folder "
        "or file:///folder.",
        variable="NADI_TIER2",
        panel=_TIER2,
        modes=Mode.ALONE,
    )
    tier2_options: dict[str, str] = _option(
        {},
        "Of the store, as key=value, such as endpoint=https://…; may be repeated. Secrets go in the environment.",
        key="tier2-option",
        panel=_TIER2,
        modes=Mode.ALONE,
        needs=("tier2",),
    )
    log_max_bytes: int | None = _option(
        None,
        "What a container's log may hold while tier 2 takes nothing; then writers wait.",
        key="log-max",
        kind=OptionKind.SIZE,
        default_text="4GiB",
        panel=_TIER2,
        modes=Mode.ALONE,
    )
    store: str | None = _option(
        None,
        "URL of the store that a cluster's servers share: s3://bucket/prefix, gs://…, az://… or file:///folder.",
        variable="NADI_STORE",
        panel=_CLUSTER,
        modes=Mode.CLUSTER,
    )
    store_options: dict[str, str] = _option(
        {},
        "Of the store, as key=value, such as endpoint=https://…; may be repeated. Secrets go in the environment.",
        key="store-option",
        panel=_CLUSTER,
        modes=Mode.CLUSTER,
    )
    cache: _PathText | None = _option(
        None,
        "Folder for copies, which may be lost.",
        default_text="a temporary one",
        panel=_CLUSTER,
        modes=Mode.MEMBER,
    )
    wal_profile: str | None = _option(
        None,
        "How long acknowledgements may take, for how few puts: latency, balanced or cost.",
        default_text="balanced; latency for a folder",
        panel=_CLUSTER,
        choices=tuple(WAL_PROFILES_S),
        modes=Mode.MEMBER,
    )
    log: str | None = _option(
        None,
        "URL of a log elsewhere: nats://host:4222,…/STREAM (docs/jetstream.md).",
        panel=_CLUSTER,
        modes=Mode.CLUSTER,
    )
    log_options: dict[str, str] = _option(
        {},
        "Of the log, such as replicas=3; may be repeated.",
        key="log-option",
        panel=_CLUSTER,
        modes=Mode.CLUSTER,
        needs=("log",),
    )
    shared: SharedPorts | None = None
    drains: bool = True

    def __post_init__(self) -> None:
        _check_types(self, _OWN_OPTIONS)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """The configuration with these values, by the names of options."""
        security = ServerSecurity(**{name: values[name] for name in _SECURITY_OPTIONS if name in values})
        return cls(**{name: values[name] for name in _OWN_OPTIONS if name in values}, security=security)

    @property
    def mode(self) -> Mode:
        return Mode.CLUSTER if self.store is not None else Mode.WORKERS if self.workers is not None else Mode.ALONE

    @property
    def folder(self) -> Path:
        """The data folder, given or not."""
        from nadi.naming import check_path  # here, for it loads limits

        return check_path("the data folder", "nadi-data" if self.data is None else self.data)

    @property
    def log_interval_s(self) -> float:
        """The least time from the start of one frame to that of the next, unless a whole frame is waiting. Frames that
        start further apart are fewer and larger (docs/cluster.md); puts into a folder, or NATS, cost nothing."""
        is_free = (self.log or self.store or "file:").startswith(("file:", "nats:", "tls:"))
        return WAL_PROFILES_S[self.wal_profile or ("latency" if is_free else "balanced")]

    def check(self, name: Callable[[ConfigOption], str] = attrgetter("name")) -> None:
        """Check each value and what goes together, without opening files, ports or stores.

        name: how an error names an option. InvalidArgumentError: a value, or an option beside another, is wrong.
        """
        values = {option.name: self._value(option) for option in OPTIONS.values()}
        for option in OPTIONS.values():
            value = values[option.name]
            if value == option.default:
                continue
            if self.mode not in option.modes:
                others = {other: name(OPTIONS[other]) for other in ("store", "workers")}
                raise InvalidArgumentError(f"{name(option)} {_SCOPES[option.modes].format(**others)}")
            if option.needs and not any(values[other] for other in option.needs):
                others_text = " or ".join(name(OPTIONS[other]) for other in option.needs)
                raise InvalidArgumentError(f"{name(option)} has no effect without {others_text}: give that, too")
            if option.choices and (value.upper() if option.choices is LOG_LEVELS else value) not in option.choices:
                choices = ", ".join(option.choices)
                raise InvalidArgumentError(f"{name(option)} can't be {value[:40]!r}: it is one of {choices}")
            least, most = option.least, option.most
            if least is not None and (value < least or (most is not None and value > most)):
                raise InvalidArgumentError(f"{name(option)} can't be {value}: it is {option.allowed}")
        if self.log_max_bytes is not None:
            from nadi.limits import LOG_FILE_BYTES, RUN_FILE_BYTES  # here, for it raises where NADI_LIMITS is wrong

            least = 2 * (LOG_FILE_BYTES + RUN_FILE_BYTES)  # else writers would wait for files that are being filled
            if self.log_max_bytes < least:
                log_max = name(OPTIONS["log_max_bytes"])
                raise InvalidArgumentError(f"{log_max} can't be {self.log_max_bytes:,}: it is at least {least:,}")
        if (self.security.tls_certificate is None) != (self.security.tls_key is None):
            raise InvalidArgumentError("TLS needs both a certificate and its private key: --tls-cert and --tls-key")

    def _value(self, option: ConfigOption) -> Any:
        return getattr(self.security if option.name in _SECURITY_OPTIONS else self, option.name)


def _options_of(kind: type) -> dict[str, ConfigOption]:
    found = {}
    for one in fields(kind):
        if "option" in one.metadata:
            declared = _KINDS.get(str(one.type).partition("[")[0].partition(" ")[0], OptionKind.TEXT)
            own = {"name": one.name, "key": one.name.replace("_", "-"), "kind": declared}
            found[one.name] = ConfigOption(**own | one.metadata["option"])
    return found


_SECURITY_OPTIONS = _options_of(ServerSecurity)
_OWN_OPTIONS = _options_of(ServerConfig)
OPTIONS = _OWN_OPTIONS | _SECURITY_OPTIONS  # by name


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens on `host`.

    >>> is_loopback("127.0.0.1"), is_loopback("0.0.0.0"), is_loopback("")
    (True, False, False)
    """
    import ipaddress
    import socket

    if not host:
        return False
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return all(ipaddress.ip_address(str(address[4][0]).partition("%")[0]).is_loopback for address in found)


def is_any_address(host: str) -> bool:
    """Whether `host` stands for all addresses of the machine, and so is none that a client could use."""
    return host in ("", "0.0.0.0", "::", "[::]")
