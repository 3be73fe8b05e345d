"""Handle damaged data in readers: raise an error, or log the damage and continue behind it."""

from __future__ import annotations

import logging
from typing import Final, Literal, get_args

from nadi.errors import DamagedDataError, InvalidArgumentError
from nadi.limits import SKIPPED_DAMAGES_MAX

log = logging.getLogger("nadi.client")

OnDamage = Literal["raise", "skip"]
RAISE: Final = "raise"
SKIP: Final = "skip"


def check_on_damage(on_damage: str) -> None:
    """Raise InvalidArgumentError unless `on_damage` is a valid option."""
    if on_damage not in get_args(OnDamage):
        raise InvalidArgumentError(f'on_damage must be "raise" or "skip", not {on_damage!r}')


def note_skipped(skipped: list[DamagedDataError], error: DamagedDataError) -> None:
    log.warning("skipped damaged data: %s", error)
    skipped.append(error)
    del skipped[:-SKIPPED_DAMAGES_MAX]
