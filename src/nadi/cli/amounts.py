"""Parse and format retention and scaling policies as users write them: ages and sizes such as `7d` or `10GiB`.

>>> policy = retention_of(None, "7d", None)
>>> policy.minimum == 7 * 24 * 3600 * 1000
True
>>> retention_of(None, "500MB", "2GB").maximum
2000000000
>>> retention_of(policy, None, "2GB")
Traceback (most recent call last):
    ...
nadi.errors.InvalidArgumentError: '7d' and '2GB' mix an age and a size: give two ages or two sizes
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from nadi.errors import InvalidArgumentError

if TYPE_CHECKING:
    from nadi.client import RetentionPolicy, ScalingPolicy

_AGES_MS = {"ms": 1, "s": 1_000, "min": 60_000, "h": 3_600_000, "d": 24 * 3_600_000}
_SIZES = {"B": 1} | {
    f"{prefix}{unit}": base**power
    for unit, base in (("B", 1_000), ("iB", 1_024))
    for power, prefix in enumerate("KMGT", 1)
}
_BY_AGE = 1  # the kind of a policy
_AMOUNT = re.compile(r"([0-9]{1,18})([A-Za-z]+)", re.ASCII)


def retention_of(
    old: RetentionPolicy | None,
    least: str | None,
    most: str | None,
    over_bookmarks: bool | None = None,
    by_event_time: bool | None = None,
) -> RetentionPolicy:
    """Return the old policy with the given changes; InvalidArgumentError if a value is neither an age nor a size,
    or is a size by event time.

    >>> old = retention_of(None, "7d", "30d")
    >>> retention_text(retention_of(old, None, "60d", True)), retention_text(retention_of(old, "10GiB", None))
    ('7d to 60d over bookmarks', '10GiB')
    """
    from nadi.client import RetentionPolicy

    is_over = over_bookmarks if over_bookmarks is not None else old is not None and old.over_bookmarks
    is_own = by_event_time if by_event_time is not None else old is not None and old.by_event_time
    if least is None:
        if old is None:
            raise InvalidArgumentError("the stream doesn't have a retention policy: set its minimum with --retention")
        least, old_most = _texts(old)
        most = most or old_most
    elif old is not None:
        is_own = is_own and (_amount(least)[0] or by_event_time is True)
        if most is None and (old.kind == _BY_AGE) == _amount(least)[0]:
            _, most = _texts(old)
    is_age, amount = _amount(least)
    if is_own and not is_age:
        raise InvalidArgumentError(f"{least!r} is a size: retention by event time needs an age, such as 90d")
    amounts = [amount]
    if most is not None:
        is_other_age, other = _amount(most)
        if is_other_age != is_age:
            raise InvalidArgumentError(f"{least!r} and {most!r} mix an age and a size: give two ages or two sizes")
        if 0 < other < amount:
            raise InvalidArgumentError(f"--retention-max {most} is below --retention {least}: raise it")
        amounts.append(other)
    if is_age:
        return RetentionPolicy.by_time(*amounts, over_bookmarks=is_over, by_event_time=is_own)
    return RetentionPolicy.by_size(*amounts, over_bookmarks=is_over)


def age_s(text: str) -> float:
    """Parse an age; return seconds.

    >>> age_s("1d")
    86400.0
    """
    amount = _parsed(text, _AGES_MS)
    if amount is None:
        raise InvalidArgumentError(f"{text!r} is not an age: use 90s, 15min, 12h, 7d")
    return amount / 1000


def size_bytes(text: str) -> int:
    """Parse a size; return bytes.

    >>> size_bytes("4GiB") == 4 << 30
    True
    """
    amount = _parsed(text, _SIZES)
    if amount is None:
        raise InvalidArgumentError(f"{text!r} is not a size: use 500MB, 10GiB ({', '.join(_SIZES)})")
    return amount


def _amount(text: str) -> tuple[bool, int]:
    """Return whether the text is an age, and its milliseconds or bytes."""
    for is_age, units in ((True, _AGES_MS), (False, _SIZES)):
        if (amount := _parsed(text, units)) is not None:
            return is_age, amount
    raise InvalidArgumentError(
        f"{text!r} is neither an age nor a size: use 90s, 15min, 12h, 7d, or 500MB, 10GiB ({', '.join(_SIZES)})"
    )


def _parsed(text: str, units: Mapping[str, int]) -> int | None:
    match = _AMOUNT.fullmatch(text)
    return int(match[1]) * units[match[2]] if match is not None and match[2] in units else None


def retention_text(policy: RetentionPolicy | None) -> str:
    """Describe the policy in the largest units that divide it evenly."""
    if policy is None:
        return "everything"
    least, most = _texts(policy)
    clock = " by event time" * policy.by_event_time
    return f"{least}{f' to {most}' if most else ''}{clock}{' over bookmarks' * policy.over_bookmarks}"


def _texts(policy: RetentionPolicy) -> tuple[str, str | None]:
    """Return its minimum and its maximum."""
    units = _AGES_MS if policy.kind == _BY_AGE else _SIZES

    def text(amount: int) -> str:
        unit = max((unit for unit in units if amount % units[unit] == 0), key=lambda unit: units[unit])
        return f"{amount // units[unit]}{unit}"

    return text(policy.minimum), None if policy.maximum in (0, (1 << 63) - 1) else text(policy.maximum)


def scaling_text(policy: ScalingPolicy) -> str:
    """Describe the policy: `1,000 events/s per segment, at least 4 segments, …`."""
    from nadi.client.control.policy import BY_EVENTS, FIXED
    from nadi.naming import plural

    count = plural(policy.min_segments, "segment")
    if policy.kind == FIXED:
        return f"{count}, fixed"
    unit = "events/s" if policy.kind == BY_EVENTS else "KiB/s"
    pieces = max(2, policy.scale_factor)
    return f"{policy.target_rate:,} {unit} per segment, at least {count}, up to {pieces:,} pieces per split"
