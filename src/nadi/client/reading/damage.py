"""What readers do where stored data is damaged: report it and let the application decide, or note it and continue."""

from __future__ import annotations

import logging
from typing import Final, Literal, get_args

from nadi.errors import DamagedDataError, InvalidArgumentError
from nadi.limits import SKIPPED_DAMAGES_KEPT

log = logging.getLogger("nadi.client")

OnDamage = Literal["raise", "skip"]
RAISE: Final = "raise"
SKIP: Final = "skip"


def check_on_damage(on_damage: str) -> None:
    """InvalidArgumentError unless it is one of the two."""
    if on_damage not in get_args(OnDamage):
        raise InvalidArgumentError(f'on_damage is "raise" or "skip", not {on_damage!r}')


def note_skipped(skipped: list[DamagedDataError], error: DamagedDataError) -> None:
    log.warning("skipped: %s", error)
    skipped.append(error)
    del skipped[:-SKIPPED_DAMAGES_KEPT]
