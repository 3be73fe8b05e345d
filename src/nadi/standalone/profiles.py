"""How long an acknowledgement may take in a cluster, for how few puts: three settings with names.

Frames that are begun further apart are fewer and larger. What each costs on the large clouds: `docs/cluster.md`.
"""

from __future__ import annotations

from dataclasses import dataclass

from nadi.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class LogProfile:
    """interval_s: at least so long from the start of one frame to that of the next, unless a whole one is waiting."""

    name: str
    interval_s: float


LATENCY, BALANCED, COST = LogProfile("latency", 0.0), LogProfile("balanced", 0.05), LogProfile("cost", 0.25)
_PROFILES = {profile.name: profile for profile in (LATENCY, BALANCED, COST)}


def profile_named(name: str | None, url: str) -> LogProfile:
    """The profile of that name, or the one for what keeps the log: puts into a folder, or NATS, cost nothing.

    >>> profile_named(None, "file:///data").name, profile_named(None, "s3://bucket/nadi").name
    ('latency', 'balanced')
    """
    if name is None:
        return LATENCY if url.startswith(("file:", "nats:", "tls:")) else BALANCED
    try:
        return _PROFILES[name]
    except KeyError:
        raise InvalidArgumentError(f"there is no log profile {name!r}: it is one of {', '.join(_PROFILES)}") from None
