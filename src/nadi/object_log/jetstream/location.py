"""Where a log in JetStream is, and how to get in: its URL, its options, and the environment.

The variables are those of the `nats` command. Secrets come from them, or from files, alone: options may be seen by
others on the machine, and are written into logs.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from nadi.errors import InvalidArgumentError

SCHEMES = ("nats", "tls")
_STREAM = re.compile(r"[A-Za-z0-9_-]{1,100}")
_PORT = 4222
_FILES = {"credentials": "NATS_CREDS", "ca": "NATS_CA", "certificate": "NATS_CERT", "key": "NATS_KEY"}
_MOST_REPLICAS = 5  # JetStream's own limit
_FORM = "a log is nats://host:4222/STREAM, with several servers as host1:4222,host2:4222, or tls:// instead of nats://"


@dataclass(frozen=True, slots=True)
class JetStreamLocation:
    """replicas: of a stream that is made; None is 3, or 1 where the server is alone. Files are None if not given."""

    servers: tuple[str, ...]
    stream: str
    replicas: int | None = None
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    credentials: Path | None = None
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    @property
    def name(self) -> str:
        """What a cluster remembers of its log: the servers may move."""
        return f"nats:{self.stream}"

    @property
    def needs_tls(self) -> bool:
        return self.servers[0].startswith("tls:") or self.ca is not None or self.certificate is not None

    def ssl_context(self) -> ssl.SSLContext:
        """For servers that speak TLS. InvalidArgumentError: a file can't be read."""
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key)
        except OSError as error:  # ssl's own are, too
            raise InvalidArgumentError(f"the certificates for NATS can't be used: {error}") from error
        return context


def where(url: str, environment: Mapping[str, str], **options: str) -> JetStreamLocation:
    """Read a log's URL.

    options: `replicas`, `user`, and the files `credentials` (.creds), `ca`, `certificate` and `key`; whatever they
    don't say is taken from the environment's NATS_USER, NATS_CREDS, NATS_CA, NATS_CERT and NATS_KEY; secrets are
    NATS_PASSWORD and NATS_TOKEN.
    InvalidArgumentError: it isn't such a URL, or an option is wrong.

    >>> where("nats://one,two:4333/ORDERS", {}).servers
    ('nats://one:4222', 'nats://two:4333')
    """
    parts = urlsplit(url)
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise InvalidArgumentError(
            f"{parts.scheme}://…: a log's URL has no credentials and no query: set NATS_USER and NATS_PASSWORD, "
            "NATS_TOKEN, or NATS_CREDS"
        )
    stream = parts.path.strip("/")
    if parts.scheme not in SCHEMES or not _STREAM.fullmatch(stream):
        raise InvalidArgumentError(f"{url}: {_FORM}; a stream's name is of letters, digits, - and _")
    unknown = options.keys() - {"replicas", "user", *_FILES}
    if unknown:
        secret = " Secrets are set in NATS_PASSWORD or NATS_TOKEN." if unknown & {"password", "token"} else ""
        known = ", ".join(("replicas", "user", *_FILES))
        raise InvalidArgumentError(f"a log in NATS has no option {min(unknown)!r}: it has {known}.{secret}")
    given = options.get("replicas")
    if given is not None and (not given.isdecimal() or not 1 <= int(given) <= _MOST_REPLICAS):
        raise InvalidArgumentError(f"replicas={given}: a stream has 1 to {_MOST_REPLICAS}")
    files = {name: options.get(name) or environment.get(variable, "") for name, variable in _FILES.items()}
    found = JetStreamLocation(
        tuple(_server(parts.scheme, server, url) for server in parts.netloc.split(",")),
        stream,
        None if given is None else int(given),
        options.get("user") or environment.get("NATS_USER", ""),
        environment.get("NATS_PASSWORD", ""),
        environment.get("NATS_TOKEN", ""),
        **{name: Path(file) if file else None for name, file in files.items()},
    )
    for file in (found.credentials, found.ca, found.certificate, found.key):
        if file is not None and not file.is_file():
            raise InvalidArgumentError(f"{file}: there is no such file, and the log's options name it")
    return found


def _server(scheme: str, server: str, url: str) -> str:
    try:
        parts = urlsplit(f"{scheme}://{server}")
        if not parts.hostname or parts.netloc != server:
            raise ValueError
        return f"{scheme}://{server}" if parts.port is not None else f"{scheme}://{server.rstrip(':')}:{_PORT}"
    except ValueError:
        raise InvalidArgumentError(f"{url}: {_FORM}") from None
