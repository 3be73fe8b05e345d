"""Server options, each defined once as a field of `ServerConfig` or `ServerSecurity`.

These fields define the options of `nadi up`, the keys of its file, the environment variables, `--print-config`, the
tables of reference/configuration.md, the arguments of servers and the options passed to child processes. Callers:
`cli.admin`, `standalone`. `nadi up --help` imports this module, so it doesn't import servers, nor `nadi.limits` at the
top level: that raises if NADI_LIMITS is invalid.
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
    DEFAULT_CERTIFICATE_FIELD,
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

WAL_PROFILES_S = {"latency": 0.0, "balanced": 0.05, "cost": 0.25}  # minimum time between the starts of two frames
_MOST_WORKERS = 64
_MOST_PORT = 65_535
_SECURITY, _TIER2, _CLUSTER = (
    f"{title} (docs/{page}.md)"
    for title, page in (("Security", "security"), ("Chunks elsewhere", "tier2"), ("A cluster", "cluster"))
)


class OptionKind(Enum):
    """The type of an option in a file; the text appears in errors and documents."""

    TEXT = "a string"
    NUMBER = "a whole number"
    SIZE = "a size"
    SWITCH = "true or false"
    TEXTS = "a list of strings"


class Mode(Flag):
    """How a server runs: alone on a data folder, as several processes on one folder, or as a member of a cluster."""

    ALONE = auto()
    WORKERS = auto()
    CLUSTER = auto()
    FOLDER = ALONE | WORKERS
    MEMBER = WORKERS | CLUSTER
    ALL = FOLDER | CLUSTER


_SCOPES = {
    Mode.ALONE: "applies to a single server with a data folder: remove it, or {workers} and {store}",
    Mode.FOLDER: "applies to a data folder: remove it, or {store}",
    Mode.WORKERS: "applies to a data folder: start several servers with one {store} instead",
    Mode.MEMBER: "applies to a server of a cluster: add {store}, or remove it",
    Mode.CLUSTER: "applies to a server of a cluster: add {store}, or remove it",
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
    """An option.

    name: the field's name. key: its name on the command line and in a file. default_text: describes the default, if
    the value alone doesn't. variable: an environment variable. modes: the servers it applies to. needs: options; at
    least one is required for this option to have an effect.
    """

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
        """Describe the allowed values."""
        if self.kind is not OptionKind.NUMBER or self.least is None:
            return self.kind.value
        limits = f", {self.least} or more" if self.most is None else f" from {self.least} to {self.most}"
        return f"{self.kind.value}{' of seconds' * self.name.endswith('_s')}{limits}"


def _option(default: Any, help: str, **more: Any) -> Any:
    """Declare a field with its option; more: fields of `ConfigOption` (name, key and kind default to the field's)."""
    metadata = {"option": {"default": default, "help": help, **more}}
    return (
        field(default_factory=dict, metadata=metadata) if default == {} else field(default=default, metadata=metadata)
    )


def _check_types(values: Any, options: Mapping[str, ConfigOption]) -> None:
    """Convert paths to text; InvalidArgumentError if a value's type isn't its field's."""
    for option in options.values():
        value = getattr(values, option.name)
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
            object.__setattr__(values, option.name, value)
        if value is not None and type(value) is not _TYPES[option.kind]:
            raise InvalidArgumentError(f"{option.name} can't be {value!r}: it must be {option.allowed}")


@dataclass(frozen=True, slots=True)
class ServerSecurity:
    """TLS and authentication settings, all off by default.

    Files are given as text or path-like and stored as text; no field is a secret.
    tls_certificate, tls_key: PEM files; with them all ports speak TLS. tls_client_*: see nadi.access.tls.
    tls_ca: PEM file of the certificates that servers of a cluster trust; None means the system's. users_file: see
    nadi.access.users. bearer_*: see nadi.access.bearer. signing_key_file: key of delegation tokens; None means a key
    in the data folder. encryption_key: names the place of the master key; None: what a new folder or cluster stores
    isn't encrypted. insecure_public: give all rights to every client that can reach a public address. Without this
    and without authentication, a server listens on loopback only.
    """

    tls_certificate: _PathText | None = _option(
        None, "PEM file of the certificate; turns on TLS for all ports.", key="tls-cert", panel=_SECURITY
    )
    tls_key: _PathText | None = _option(None, "PEM file of the certificate's private key.", panel=_SECURITY)
    tls_client_ca: _PathText | None = _option(
        None,
        "PEM file of authorities; clients then need a certificate signed by one of them.",
        panel=_SECURITY,
        needs=("users_file",),
    )
    tls_client_user: str = _option(
        DEFAULT_CERTIFICATE_FIELD,
        "Field of a client certificate that names the user: cn, dns or email.",
        panel=_SECURITY,
        choices=("cn", "dns", "email"),
        needs=("tls_client_ca",),
    )
    tls_client_crl: _PathText | None = _option(
        None, "PEM file of revocation lists of these authorities.", panel=_SECURITY, needs=("tls_client_ca",)
    )
    users_file: _PathText | None = _option(None, "File of users and passwords; see `nadi passwd`.", panel=_SECURITY)
    bearer_keys: _PathText | None = _option(
        None, "Keys for bearer tokens: PEM or JWKS file, or https URL of a JWKS.", panel=_SECURITY
    )
    bearer_issuer: str = _option("", "Required `iss` of bearer tokens.", panel=_SECURITY, needs=("bearer_keys",))
    bearer_audience: str = _option("", "Required `aud` of bearer tokens.", panel=_SECURITY, needs=("bearer_keys",))
    bearer_claim: str = _option(
        DEFAULT_CLAIM, "Claim of bearer tokens that lists permissions.", panel=_SECURITY, needs=("bearer_keys",)
    )
    signing_key_file: _PathText | None = _option(
        None,
        "File of the key that signs delegation tokens.",
        key="signing-key",
        default_text="a key in the data folder",
        panel=_SECURITY,
        modes=Mode.ALONE,
        needs=("users_file", "bearer_keys"),
    )
    token_lifetime_s: int = _option(
        DEFAULT_TOKEN_LIFETIME_S,
        "Lifetime of delegation tokens, in seconds.",
        key="token-lifetime",
        panel=_SECURITY,
        least=1,
        needs=("users_file", "bearer_keys"),
    )
    encryption_key: str | None = _option(
        None,
        "Source of the master key that encrypts a new folder or cluster, and opens an encrypted one: file:PATH, "
        "env:NAME, or a key service (docs/encryption.md).",
        variable="NADI_ENCRYPTION_KEY",
        default_text="none",
        panel=_SECURITY,
    )
    audit: str = _option(
        "on",
        "Whether to record logins and administrative operations in _system/audit: on or off.",
        panel=_SECURITY,
        choices=("on", "off"),
        needs=("users_file", "bearer_keys"),
    )
    audit_retention_s: int = _option(
        0,
        "Age after which audit records are deleted, in seconds; 0 keeps them.",
        key="audit-retention",
        panel=_SECURITY,
        least=0,
        needs=("users_file", "bearer_keys"),
    )
    insecure_public: bool = _option(False, "Allow a public address without authentication.", panel=_SECURITY)
    tls_ca: _PathText | None = _option(
        None,
        "PEM file of the certificates that servers trust.",
        default_text="the system's",
        panel=_CLUSTER,
        modes=Mode.CLUSTER,
        needs=("tls_certificate",),
    )

    def __post_init__(self) -> None:
        _check_types(self, _SECURITY_OPTIONS)

    @property
    def authenticates(self) -> bool:
        """Whether callers must authenticate."""
        return self.users_file is not None or self.bearer_keys is not None

    @property
    def audit_retention_ms(self) -> int | None:
        """The age of audit records; None without an audit stream."""
        return self.audit_retention_s * 1000 if self.authenticates and self.audit == "on" else None

    def check_address(self, host: str, advertised_host: str | None) -> None:
        """Raise InvalidArgumentError if listening on `host` is unsafe, or if clients can't connect to the advertised
        address: `advertised_host` or else `host`."""
        if is_loopback(host):
            return
        if not self.authenticates and not self.insecure_public:
            raise InvalidArgumentError(
                f"{host or 'every address'} is not loopback, and without authentication every client could read and "
                "delete all data: add --users-file (and --tls-cert, --tls-key), listen on 127.0.0.1, or pass "
                "--insecure-public to allow it"
            )
        if self.authenticates and self.tls_certificate is None:
            log.warning(
                "passwords and tokens cross the network to %s in clear text: add --tls-cert and --tls-key", host
            )
        if advertised_host is None and is_any_address(host):
            raise InvalidArgumentError(
                f"clients can't connect to {host or 'every address'}: pass a reachable address as --advertised-host"
            )


@dataclass(frozen=True, slots=True)
class SharedPorts:
    """Ports that several servers of one machine share in addition to their own; a connection reaches any of them.

    rest: None turns REST off.
    """

    controller: int
    rest: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """The configuration of a server: see the help of each option.

    A port of 0 means any free port. rest_port: None turns REST off. store_options, log_options, tier2_options: options
    such as `endpoint`, added to the environment variables of the store's library. shared: ports shared by workers.
    drains: whether a server of a cluster hands over its containers before it stops.
    """

    data: _PathText | None = _option(
        None, "Folder that holds all data; created if missing.", default_text="nadi-data", modes=Mode.FOLDER
    )
    host: str = _option(DEFAULT_HOST, "Address to listen on.")
    port: int = _option(
        DEFAULT_CONTROLLER_PORT, "Port of the controller; 0 picks free ports.", least=0, most=_MOST_PORT
    )
    store_port: int | None = _option(
        None,
        "Port of the segment store; 0 picks a free port.",
        default_text="12345, or a free port after --port",
        least=0,
        most=_MOST_PORT,
    )
    rest_port: int | None = _option(
        None,
        "Port of the REST interface; 0 picks a free port.",
        default_text="9091, or a free port after --port",
        least=0,
        most=_MOST_PORT,
    )
    kafka_port: int | None = _option(
        None,
        "Port for Kafka clients, whose topics are the streams of scope kafka (docs/kafka.md); 0 picks a free port. "
        "Workers use consecutive ports.",
        default_text="none",
        least=0,
        most=_MOST_PORT,
    )
    containers: int | None = _option(
        None,
        "Number of segment containers of a new folder or cluster; fixed after that.",
        default_text="1, or 8",
        least=1,
        most=MOST_CONTAINERS,
    )
    scaling: str = _option(
        DEFAULT_SCALING,
        "How quickly streams with a scaling policy adapt to their load: fast or classic.",
        choices=("fast", "classic"),
    )
    verbose: bool = _option(False, "Log more: --log-level INFO.")
    log_level: str | None = _option(
        None,
        "Minimum level of log messages: DEBUG, INFO, WARNING, ERROR or CRITICAL.",
        default_text="WARNING",
        choices=LOG_LEVELS,
    )
    log_format: str = _option(
        DEFAULT_LOG_FORMAT,
        "Format of log messages: text, or json with one object per line (docs/operations.md).",
        choices=LOG_FORMATS,
    )
    traces: str = _option(DEFAULT_TRACES, "Exporter of traces: none or otlp (docs/monitoring.md).", choices=TRACE_KINDS)
    advertised_host: str | None = _option(None, "Host name or address that clients connect to.", default_text="--host")
    security: ServerSecurity = field(default_factory=ServerSecurity)
    workers: int | None = _option(
        None,
        "Number of processes that serve the folder, to use several cores (docs/cluster.md); a folder created this way "
        "always needs it.",
        least=1,
        most=_MOST_WORKERS,
        modes=Mode.WORKERS,
    )
    tier2: str | None = _option(
        None,
        "URL of the object store for chunks: s3://bucket/prefix, gs://…, az://…, hdfs://host:port/folder or "
        "file:///folder.",
        variable="NADI_TIER2",
        panel=_TIER2,
        modes=Mode.ALONE,
    )
    tier2_options: dict[str, str] = _option(
        {},
        "Option of this store as key=value, such as endpoint=https://…; repeatable. Pass secrets in the environment.",
        key="tier2-option",
        panel=_TIER2,
        modes=Mode.ALONE,
        needs=("tier2",),
    )
    log_max_bytes: int | None = _option(
        None,
        "Maximum size of a container's log while tier 2 is unavailable; writers wait beyond it.",
        key="log-max",
        kind=OptionKind.SIZE,
        default_text="4GiB",
        panel=_TIER2,
        modes=Mode.ALONE,
    )
    store: str | None = _option(
        None,
        "URL of the object store that a cluster shares: s3://bucket/prefix, gs://…, az://… or file:///folder.",
        variable="NADI_STORE",
        panel=_CLUSTER,
        modes=Mode.CLUSTER,
    )
    store_options: dict[str, str] = _option(
        {},
        "Option of this store as key=value, such as endpoint=https://…; repeatable. Pass secrets in the environment.",
        key="store-option",
        panel=_CLUSTER,
        modes=Mode.CLUSTER,
    )
    cache: _PathText | None = _option(
        None,
        "Folder for cached copies, safe to delete.",
        default_text="a temporary folder",
        panel=_CLUSTER,
        modes=Mode.MEMBER,
    )
    wal_profile: str | None = _option(
        None,
        "Trade acknowledgement latency for fewer PUTs: latency, balanced or cost.",
        default_text="balanced; latency for a folder",
        panel=_CLUSTER,
        choices=tuple(WAL_PROFILES_S),
        modes=Mode.MEMBER,
    )
    log: str | None = _option(
        None,
        "URL of an external write-ahead log: nats://host:4222,…/STREAM (docs/jetstream.md).",
        panel=_CLUSTER,
        modes=Mode.CLUSTER,
    )
    log_options: dict[str, str] = _option(
        {},
        "Option of this log as key=value, such as replicas=3; repeatable.",
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
        """Build a configuration from values by option name."""
        security = ServerSecurity(**{name: values[name] for name in _SECURITY_OPTIONS if name in values})
        return cls(**{name: values[name] for name in _OWN_OPTIONS if name in values}, security=security)

    @property
    def mode(self) -> Mode:
        return Mode.CLUSTER if self.store is not None else Mode.WORKERS if self.workers is not None else Mode.ALONE

    @property
    def folder(self) -> Path:
        """The data folder, or its default."""
        from nadi.naming import check_path  # imported here: it loads limits

        return check_path("the data folder", "nadi-data" if self.data is None else self.data)

    @property
    def log_interval_s(self) -> float:
        """The minimum time between the starts of two frames, unless a full frame is waiting. A longer interval means
        fewer and larger frames (docs/cluster.md); writes to a folder or NATS are free."""
        is_free = (self.log or self.store or "file:").startswith(("file:", "nats:", "tls:"))
        return WAL_PROFILES_S[self.wal_profile or ("latency" if is_free else "balanced")]

    def check(self, name: Callable[[ConfigOption], str] = attrgetter("name")) -> None:
        """Raise InvalidArgumentError for a wrong value or combination, without opening files, ports or stores.

        name: returns the name of an option for error messages.
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
                raise InvalidArgumentError(f"{name(option)} has no effect without {others_text}: add it")
            if option.choices and (value.upper() if option.choices is LOG_LEVELS else value) not in option.choices:
                choices = ", ".join(option.choices)
                raise InvalidArgumentError(f"{name(option)} can't be {value[:40]!r}: choose one of {choices}")
            least, most = option.least, option.most
            if least is not None and (value < least or (most is not None and value > most)):
                raise InvalidArgumentError(f"{name(option)} can't be {value}: it must be {option.allowed}")
        if self.log_max_bytes is not None:
            from nadi.limits import LOG_FILE_BYTES, RUN_FILE_BYTES  # imported here: raises if NADI_LIMITS is invalid

            least = 2 * (LOG_FILE_BYTES + RUN_FILE_BYTES)  # below it, writers would wait for files being filled
            if self.log_max_bytes < least:
                log_max = name(OPTIONS["log_max_bytes"])
                raise InvalidArgumentError(f"{log_max} can't be {self.log_max_bytes:,}: it must be at least {least:,}")
        if (self.security.tls_certificate is None) != (self.security.tls_key is None):
            raise InvalidArgumentError("TLS needs both --tls-cert and --tls-key")
        if self.security.tls_client_ca is not None and self.security.tls_certificate is None:
            raise InvalidArgumentError(f"{name(OPTIONS['tls_client_ca'])} needs TLS: add --tls-cert and --tls-key")
        if self.security.bearer_keys is not None and not (
            self.security.bearer_issuer and self.security.bearer_audience
        ):
            keys, issuer, audience = (name(OPTIONS[f"bearer_{part}"]) for part in ("keys", "issuer", "audience"))
            raise InvalidArgumentError(f"{keys} needs the tokens' issuer and audience: set {issuer} and {audience}")

    def _value(self, option: ConfigOption) -> Any:
        return getattr(self.security if option.name in _SECURITY_OPTIONS else self, option.name)


def _options_of(kind: type) -> dict[str, ConfigOption]:
    options = {}
    for declared_field in fields(kind):
        if "option" in declared_field.metadata:
            declared = _KINDS.get(str(declared_field.type).partition("[")[0].partition(" ")[0], OptionKind.TEXT)
            derived = {"name": declared_field.name, "key": declared_field.name.replace("_", "-"), "kind": declared}
            options[declared_field.name] = ConfigOption(**derived | declared_field.metadata["option"])
    return options


_SECURITY_OPTIONS = _options_of(ServerSecurity)
_OWN_OPTIONS = _options_of(ServerConfig)
OPTIONS = _OWN_OPTIONS | _SECURITY_OPTIONS  # by name


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a server that listens on `host`.

    >>> is_loopback("127.0.0.1"), is_loopback("0.0.0.0"), is_loopback("")
    (True, False, False)
    """
    import ipaddress
    import socket

    if not host:
        return False
    try:
        addresses = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return all(ipaddress.ip_address(str(address[4][0]).partition("%")[0]).is_loopback for address in addresses)


def is_any_address(host: str) -> bool:
    """Return whether `host` means all addresses of the machine, so that clients can't connect to it."""
    return host in ("", "0.0.0.0", "::", "[::]")
