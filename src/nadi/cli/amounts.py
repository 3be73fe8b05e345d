"""Retention policies as people write them: an age or a size, such as `7d` or `10GiB`.

>>> policy_of("7d", None).minimum == 7 * 24 * 3600 * 1000
True
>>> policy_of("500MB", "2GB").maximum
2000000000
>>> policy_of("7d", "2GB")
Traceback (most recent call last):
    ...
nadi.errors.InvalidArgumentError: one of '7d' and '2GB' is an age: give two ages, or two sizes
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nadi.errors import InvalidArgumentError

if TYPE_CHECKING:
    from nadi.client import RetentionPolicy

_AGES_MS = {"ms": 1, "s": 1_000, "min": 60_000, "h": 3_600_000, "d": 24 * 3_600_000}
_SIZES = {"B": 1} | {
    f"{prefix}{unit}": base**power
    for unit, base in (("B", 1_000), ("iB", 1_024))
    for power, prefix in enumerate("KMGT", 1)
}
_BY_AGE = 1  # the kind of a policy
_AMOUNT = re.compile(r"([0-9]{1,18})([A-Za-z]+)", re.ASCII)


def policy_of(
    least: str, most: str | None, *, over_bookmarks: bool = False, by_event_time: bool = False
) -> RetentionPolicy:
    """The policy that keeps at least the one, and at most the other; InvalidArgumentError if they are neither ages nor
    sizes, or sizes by event time."""
    from nadi.client import RetentionPolicy

    is_age, amount = _amount(least)
    if by_event_time and not is_age:
        raise InvalidArgumentError(f"{least!r} is a size: by event time a stream keeps ages, such as 90d")
    amounts = [amount]
    if most is not None:
        is_other_age, other = _amount(most)
        if is_other_age != is_age:
            raise InvalidArgumentError(f"one of {least!r} and {most!r} is an age: give two ages, or two sizes")
        amounts.append(other)
    if is_age:
        return RetentionPolicy.by_time(*amounts, over_bookmarks=over_bookmarks, by_event_time=by_event_time)
    return RetentionPolicy.by_size(*amounts, over_bookmarks=over_bookmarks)


def changed_policy(
    old: RetentionPolicy | None,
    least: str | None,
    most: str | None,
    over_bookmarks: bool | None,
    by_event_time: bool | None = None,
) -> RetentionPolicy:
    """The old policy but for what is given.

    >>> old = policy_of("7d", "30d")
    >>> policy_text(changed_policy(old, None, "60d", True)), policy_text(changed_policy(old, "10GiB", None, None))
    ('7d to 60d over bookmarks', '10GiB')
    """
    is_over = over_bookmarks if over_bookmarks is not None else old is not None and old.over_bookmarks
    is_own = by_event_time if by_event_time is not None else old is not None and old.by_event_time
    if least is not None:
        least_is_age, _ = _amount(least)
        if most is None and old is not None and (old.kind == _BY_AGE) == least_is_age:
            _, most = _texts(old)
        is_own = is_own and (least_is_age or by_event_time is True)
        return policy_of(least, most, over_bookmarks=is_over, by_event_time=is_own)
    if old is None:
        raise InvalidArgumentError("the stream keeps everything: say with --retention what it is to keep at least")
    least, known_most = _texts(old)
    return policy_of(least, most or known_most, over_bookmarks=is_over, by_event_time=is_own)


def age_s(text: str) -> float:
    """An age in seconds; InvalidArgumentError if it isn't one.

    >>> age_s("1d")
    86400.0
    """
    is_age, amount = _amount(text)
    if not is_age:
        raise InvalidArgumentError(f"{text!r} is a size: give an age, such as 1d or 12h")
    return amount / 1000


def size_bytes(text: str) -> int:
    """A size in bytes; InvalidArgumentError if it isn't one.

    >>> size_bytes("4GiB") == 4 << 30
    True
    """
    is_age, amount = _amount(text)
    if is_age:
        raise InvalidArgumentError(f"{text!r} is an age: give a size, such as 4GiB or 500MB")
    return amount


def _amount(text: str) -> tuple[bool, int]:
    """Whether it is an age, and how many milliseconds or bytes."""
    match = _AMOUNT.fullmatch(text)
    if match is not None and match[2] in _AGES_MS:
        return True, int(match[1]) * _AGES_MS[match[2]]
    if match is not None and match[2] in _SIZES:
        return False, int(match[1]) * _SIZES[match[2]]
    raise InvalidArgumentError(
        f"{text!r} is neither an age nor a size: write 90s, 15min, 12h, 7d, or 500MB, 10GiB ({', '.join(_SIZES)})"
    )


def policy_text(policy: RetentionPolicy | None) -> str:
    """The policy for people, in the largest units that it is whole in."""
    if policy is None:
        return "keeps everything"
    least, most = _texts(policy)
    clock = " by event time" * policy.by_event_time
    return f"{least}{f' to {most}' if most else ''}{clock}{' over bookmarks' * policy.over_bookmarks}"


def _texts(policy: RetentionPolicy) -> tuple[str, str | None]:
    """Its least and its most."""
    units = _AGES_MS if policy.kind == _BY_AGE else _SIZES
    most = None if policy.maximum in (0, (1 << 63) - 1) else _text(policy.maximum, units)
    return _text(policy.minimum, units), most


def _text(amount: int, units: dict[str, int]) -> str:
    unit = max((unit for unit in units if amount % units[unit] == 0), key=lambda unit: units[unit])
    return f"{amount // units[unit]}{unit}"
