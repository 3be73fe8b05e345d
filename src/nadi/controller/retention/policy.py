"""A stream's retention policy, and what follows from it, from what subscribers have consumed, and from names.

The rules are Pravega's. What is within `least` is kept. Without subscribers, everything else goes; with them, what not
all of them have consumed stays too, unless there is a maximum and it is older, or more, than `most`.

Where two cuts are neither before nor after each other, Pravega takes the newest of its recorded cuts that is before
both. There is a cut for every moment here, so the rules are kept key by key: `earliest` and `latest`.

Bookmarks and slices hold back whatever the policy says, its maximum too, unless it says `over_bookmarks`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nadi.controller.retention.past import Cuts
from nadi.controller.state.history import Cut
from nadi.controller.state.records import Config, RetentionType
from nadi.errors import InvalidArgumentError

_I64_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Policy:
    """least, most: milliseconds or bytes, by `kind`; most is None if there is no maximum."""

    kind: RetentionType
    least: int
    most: int | None
    over_bookmarks: bool
    by_event_time: bool = False

    @classmethod
    def of(cls, config: Config) -> Policy | None:
        """What the configuration says; None if everything is kept."""
        if config.retention_type is RetentionType.NONE:
            return None
        most = None if config.retention_max in (0, _I64_MAX) else config.retention_max
        return cls(
            config.retention_type,
            config.retention_param,
            most,
            config.retention_over_bookmarks,
            config.retention_by_event_time,
        )

    def __str__(self) -> str:
        unit = "ms" if self.kind is RetentionType.TIME else "bytes"
        most = "" if self.most is None else f", at most {self.most:,} {unit}"
        clock = ", by event time" * self.by_event_time
        return f"at least {self.least:,} {unit}{most}{clock}{', over bookmarks' * self.over_bookmarks}"


def check(config: Config) -> None:
    """InvalidArgumentError for a policy that can't be meant, saying what to do."""
    unit = "milliseconds" if config.retention_type is RetentionType.TIME else "bytes"
    least, most = config.retention_param, config.retention_max
    if config.retention_type is RetentionType.NONE:
        if least or most or config.retention_over_bookmarks or config.retention_by_event_time:
            raise InvalidArgumentError("a retention policy says what to keep by time or by size: set its type")
        return
    if config.retention_by_event_time and config.retention_type is not RetentionType.TIME:
        raise InvalidArgumentError("retention by event time is by age: give an age to keep, not a size")
    if config.retention_by_event_time and not config.event_time:
        raise InvalidArgumentError(
            "retention by event time needs the field that has an event's time: set the stream's event time"
        )
    if least < 0 or most < 0:
        raise InvalidArgumentError(f"a retention policy keeps no negative {unit}: {min(least, most):,}")
    if least == 0:
        raise InvalidArgumentError(
            f"a retention policy that keeps 0 {unit} keeps nothing: give it more, or leave it out to keep everything"
        )
    if 0 < most < least:
        raise InvalidArgumentError(
            f"a retention policy can't keep at least {least:,} {unit} and at most {most:,}: raise the maximum"
        )


def cut_by_time(cuts: Cuts, least: Cut, consumed: Cut | None, most: Cut | None) -> Cut:
    """The cut that the policy and its subscribers allow. least, most: those of the moments that long ago; consumed:
    what all subscribers have consumed, None if none of them has said."""
    if consumed is None:
        return least
    return cuts.earliest(least, consumed if most is None else cuts.latest(consumed, most))


def cut_by_size(policy: Policy, cuts: Cuts, least: Cut, consumed: Cut | None, most: Cut | None) -> Cut:
    """As `cut_by_time`. least: the newest cut after which there are at least that many bytes; most: the oldest with at
    most that many after it."""
    if consumed is None:
        return least
    needed = cuts.past.bytes_after(consumed)
    if needed < policy.least:
        return cuts.earliest(least, consumed)
    if policy.most is None or most is None or needed < policy.most:
        return consumed
    return most


def consumed_by_all(cuts: Cuts, published: Iterable[Cut]) -> Cut | None:
    """What all subscribers have consumed; None if none has published a cut, since those who never did don't count."""
    found: Cut | None = None
    for cut in published:
        found = cut if found is None else cuts.earliest(found, cut)
    return found
