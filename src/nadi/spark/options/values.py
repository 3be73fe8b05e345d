"""The values of options: texts, numbers, flags, each with the error that names it."""

from __future__ import annotations

from collections.abc import Mapping

from nadi.errors import InvalidArgumentError
from nadi.model.delivery import EXACTLY_ONCE, Guarantee, check_delivery
from nadi.naming import is_number


def flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    value = options.get(name, str(default)).lower()
    if value not in ("true", "false"):
        raise InvalidArgumentError(f"the option {name!r} is {value!r}: it must be true or false")
    return value == "true"


def needed(options: Mapping[str, str], name: str, shown: str = "") -> str:
    """shown: the name as its users write it, if not in small letters."""
    value = options.get(name)
    if not value:
        shown = shown or name
        raise InvalidArgumentError(f"the option {shown!r} is missing: say .option({shown!r}, ...)")
    return value


def delivery_of(options: Mapping[str, str]) -> Guarantee:
    """The option `delivery`; exactly-once if it is not given."""
    try:
        return check_delivery(options.get("delivery", EXACTLY_ONCE).lower())
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"the option 'delivery': {error}") from None


def number(options: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    text = options.get(name.lower())
    if text is None:
        return default
    if not is_number(text) or not low <= int(text) <= high:
        raise InvalidArgumentError(
            f"the option {name!r} is {text[:40]!r}: it must be a number from {low:,} to {high:,}"
        )
    return int(text)
