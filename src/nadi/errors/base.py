"""What all errors of nadi have in common."""

from __future__ import annotations

from typing import Any


class NadiError(Exception):
    """Base of all errors that nadi raises on purpose. Pools of processes hand them on as they are."""

    def __reduce__(self) -> tuple[Any, ...]:  # as usual they would be made anew of their words alone
        return _made_again, (type(self), self.args, self.__dict__)


def _made_again(kind: type[NadiError], args: tuple[Any, ...], values: dict[str, Any]) -> NadiError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(values)
    return error
