"""Which stream, and how to get there: what all uses of a format have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nadi.client.control.security import Basic, Bearer, Credentials, split_uri
from nadi.client.scan.connection import Connection
from nadi.defaults import DEFAULT_URI
from nadi.errors import InvalidArgumentError
from nadi.spark.options.values import flag, needed


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """A stream and the controller that knows it."""

    controller: Connection
    scope: str
    stream: str


def connection_of(options: Mapping[str, str]) -> Connection:
    uri = options.get("controller", DEFAULT_URI)
    split_uri(uri)  # raises if it is none
    user, token = options.get("auth_user"), options.get("auth_token")
    credentials: Credentials | None = None
    if user is not None and token is not None:
        raise InvalidArgumentError("the options 'auth_user' and 'auth_token' exclude each other")
    if user is not None:
        credentials = Basic(user, needed(options, "auth_password"))
    elif token is not None:
        credentials = Bearer(token)
    if user is None and "auth_password" in options:
        raise InvalidArgumentError("the option 'auth_password' needs 'auth_user' beside it")
    checked = flag(options, "validate_host_name", True)
    return Connection(uri, credentials, options.get("trust_store"), checked)
