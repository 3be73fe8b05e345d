"""Location of a log in JetStream, and its credentials: from its URL, its options, and the environment.

The variables are those of the `nats` command. Secrets are read only from variables or files: options may be visible to
others on the machine, and are logged.
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
_FORM = "use nats://host:4222/STREAM, with several servers as host1:4222,host2:4222, or tls:// instead of nats://"


@dataclass(frozen=True, slots=True)
class JetStreamLocation:
    """Location of a log. replicas: of a new stream; None: 3, or 1 on a single server. Files: None if not given."""

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
        """Return the name by which a cluster identifies its log, without servers, which may move."""
        return f"nats:{self.stream}"

    @property
    def needs_tls(self) -> bool:
        return self.servers[0].startswith("tls:") or self.ca is not None or self.certificate is not None

    def ssl_context(self) -> ssl.SSLContext:
        """Return the context for servers that speak TLS. InvalidArgumentError: a file can't be read."""
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key)
        except OSError as error:  # includes ssl.SSLError
            raise InvalidArgumentError(f"the certificates for NATS are invalid or unreadable: {error}") from error
        return context


def where(url: str, environment: Mapping[str, str], **options: str) -> JetStreamLocation:
    """Parse a log's URL.

    options: `replicas`, `user`, and the files `credentials` (.creds), `ca`, `certificate` and `key`. Missing options
    default to the environment's NATS_USER, NATS_CREDS, NATS_CA, NATS_CERT and NATS_KEY; secrets come from NATS_PASSWORD
    and NATS_TOKEN. InvalidArgumentError: not such a URL, or an invalid option.

    >>> where("nats://one,two:4333/ORDERS", {}).servers
    ('nats://one:4222', 'nats://two:4333')
    """
    parts = urlsplit(url)
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise InvalidArgumentError(
            f"{parts.scheme}://…: a log's URL can't have credentials or a query: set NATS_USER and NATS_PASSWORD, "
            "NATS_TOKEN, or NATS_CREDS"
        )
    stream = parts.path.strip("/")
    if parts.scheme not in SCHEMES or not _STREAM.fullmatch(stream):
        raise InvalidArgumentError(f"{url}: {_FORM}; stream names have letters, digits, - and _")
    unknown = options.keys() - {"replicas", "user", *_FILES}
    if unknown:
        secret = " Set secrets in NATS_PASSWORD or NATS_TOKEN." if unknown & {"password", "token"} else ""
        known = ", ".join(("replicas", "user", *_FILES))
        raise InvalidArgumentError(f"unknown option {min(unknown)!r} of a log in NATS: use {known}.{secret}")
    replicas = options.get("replicas")
    if replicas is not None and (not replicas.isdecimal() or not 1 <= int(replicas) <= _MOST_REPLICAS):
        raise InvalidArgumentError(f"replicas={replicas}: use 1 to {_MOST_REPLICAS}")
    files = {name: options.get(name) or environment.get(variable, "") for name, variable in _FILES.items()}
    location = JetStreamLocation(
        tuple(_server(parts.scheme, server, url) for server in parts.netloc.split(",")),
        stream,
        None if replicas is None else int(replicas),
        options.get("user") or environment.get("NATS_USER", ""),
        environment.get("NATS_PASSWORD", ""),
        environment.get("NATS_TOKEN", ""),
        **{name: Path(file) if file else None for name, file in files.items()},
    )
    for file in (location.credentials, location.ca, location.certificate, location.key):
        if file is not None and not file.is_file():
            raise InvalidArgumentError(f"{file}, named in the log's options, doesn't exist: correct the option")
    return location


def _server(scheme: str, server: str, url: str) -> str:
    try:
        parts = urlsplit(f"{scheme}://{server}")
        if not parts.hostname or parts.netloc != server:
            raise ValueError
        return f"{scheme}://{server}" if parts.port is not None else f"{scheme}://{server.rstrip(':')}:{_PORT}"
    except ValueError:
        raise InvalidArgumentError(f"{url}: {_FORM}") from None
