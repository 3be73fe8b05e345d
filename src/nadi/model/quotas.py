"""Quotas of scopes and users: limits on rates and counts, their use, and each server's share of them.

A quota's owner is `scope/<scope>` or `user/<user>`. A limit of None doesn't limit anything.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import asdict

from nadi.display import Displayed
from nadi.errors import InvalidArgumentError
from nadi.naming import check_name

SCOPE, USER = "scope", "user"
RATES = ("bytes_in", "requests_in", "bytes_out", "requests_out")
OF_SCOPES = (*RATES, "streams", "segments", "stored_bytes")
OF_USERS = (*RATES, "connections")


class QuotaLimits(Displayed, Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """bytes_in, requests_in: written per second, a request being an append of one event or a block. bytes_out,
    requests_out: read per second. streams, segments, stored_bytes: of a scope. connections: of a user."""

    bytes_in: int | None = None
    requests_in: int | None = None
    bytes_out: int | None = None
    requests_out: int | None = None
    streams: int | None = None
    segments: int | None = None
    stored_bytes: int | None = None
    connections: int | None = None


class Quota(QuotaLimits, frozen=True, kw_only=True):
    """The limits of one owner, and their use: rates per second in the last seconds, counts when last counted. used:
    only of limits that are set."""

    owner: str
    used: dict[str, float] = {}


class QuotaUse(Struct, frozen=True, array_like=True):
    """What one server measured of an owner: the rates per second in the order of `RATES`, and its open connections."""

    owner: str
    rates: tuple[float, ...]
    connections: int


class QuotaShare(Struct, frozen=True, array_like=True):
    """What an owner may use of one server. is_full: it stores more than its quota, so its writers wait."""

    owner: str
    rates: tuple[float | None, ...]
    connections: int | None = None
    is_full: bool = False


def check_owner(owner: str) -> tuple[str, str]:
    """Return the kind and the name of a quota's owner; InvalidArgumentError.

    >>> check_owner("scope/home"), check_owner("user/ann")
    (('scope', 'home'), ('user', 'ann'))
    """
    kind, _, name = owner.partition("/")
    if kind == SCOPE:
        check_name("scope", name)
    elif kind != USER or not name or not name.isprintable() or len(name) > 255:
        raise InvalidArgumentError(f"{owner[:60]!r} can't have a quota: name it as scope/SCOPE or user/USER")
    return kind, name


def check_limits(owner: str, limits: QuotaLimits) -> None:
    """Raise InvalidArgumentError for a limit that its owner can't have, or without any limit."""
    kind, _ = check_owner(owner)
    supported = OF_SCOPES if kind == SCOPE else OF_USERS
    values = {name: value for name, value in asdict(limits).items() if value is not None and name in LIMITS}
    for name, value in values.items():
        if name not in supported:
            raise InvalidArgumentError(
                f"the quota of a {kind} can't limit {name}, which is not supported: use {', '.join(supported)}"
            )
        if value < (least := int(name in RATES)) or value >= 1 << 62:
            raise InvalidArgumentError(f"{name} of a quota can't be {value:,}: use {least} or more")
    if not values:
        raise InvalidArgumentError(
            f"the quota of {owner} doesn't have limits: give at least one of {', '.join(supported)}"
        )


LIMITS = QuotaLimits.__struct_fields__
