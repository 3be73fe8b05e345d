"""A key of a table changed by what it holds: read, made anew, and stored if nobody else was faster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from nadi.backoff import Tries
from nadi.client.tables.table import ABSENT, Table, value_or_none
from nadi.errors import ConditionFailedError

_Result = TypeVar("_Result")


async def change_value(
    table: Table, key: bytes, what: str, make: Callable[[bytes | None], Awaitable[tuple[bytes | None, _Result]]]
) -> _Result:
    """Store the value that `make` makes of the present one, again of the newest while others are faster; what it
    gives besides at last. ContentionError, naming `what`, if they always are.

    make: gets None where there is no value, or no table, and makes the table then; gives None to store nothing.
    """
    tries = Tries(what)
    while True:
        held = await value_or_none(table, key)
        value, result = await make(None if held is None else held.value)
        if value is None:
            return result
        try:
            await table.put(key, value, ABSENT if held is None else held.version)
            return result
        except ConditionFailedError:
            await tries.lost()
