"""Rows to events, under a schema that the store has: the other way from `parser`.

What is wrong with the rows' columns is told when the write is planned; what only shows in a row fails its task.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from nadi.client.serializers.arrow_columns import plain
from nadi.client.serializers.codec import HEADER_BYTES, MAGIC
from nadi.client.values.columns import MISFITS, check_taken, told
from nadi.client.values.options import Target
from nadi.client.values.target import format_of
from nadi.client.values.types import is_json
from nadi.errors import InvalidArgumentError, SerializationError


def check_column(given: pa.DataType, target: Target, name: str) -> None:
    """InvalidArgumentError unless a column of that type can be written. name: the column's."""
    problem = _problem(given, target.kind, name)
    if problem is not None:
        raise InvalidArgumentError(
            f"the column {name!r} isn't what version {target.schema_id} of the stream's schema says: {problem}"
        )


def _problem(given: pa.DataType, kind: pa.DataType, path: str) -> str | None:
    types, wanted = pa.types, plain(kind)
    if types.is_struct(kind):
        if not types.is_struct(given):
            return f"{path} must be a struct, and is {given}"
        found = {field.name: field.type for field in map(given.field, range(given.num_fields))}
        known = [kind.field(number) for number in range(kind.num_fields)]
        for extra in found.keys() - {field.name for field in known}:
            return f"there is no field {path}.{extra}, but {', '.join(field.name for field in known)}"
        for field in known:
            if field.name not in found:
                if not field.nullable:
                    return f"{path}.{field.name} is missing"
                continue
            problem = _problem(found[field.name], field.type, f"{path}.{field.name}")
            if problem is not None:
                return problem
        return None
    if types.is_list(kind) and (types.is_list(given) or types.is_large_list(given)):
        return _problem(given.value_type, kind.value_type, f"{path}.element")
    if types.is_map(kind) and types.is_map(given):
        return _problem(given.key_type, kind.key_type, f"{path}.key") or _problem(
            given.item_type, kind.item_type, f"{path}.value"
        )
    if plain(given) == wanted:
        return None
    text = " (the text of its JSON)" if is_json(kind) else ""
    return f"{path} is {plain(given)}, and must be {wanted}{text}: cast it"


def encoder(target: Target) -> Callable[[pa.Array], pa.Array]:
    """What makes a column of events of one of values. SerializationError for a row that the schema doesn't take."""
    assert target.definition is not None
    assert target.schema_id is not None
    header = MAGIC + target.schema_id.to_bytes(HEADER_BYTES - len(MAGIC), "big")
    encode = format_of(target.options.format).encoder(target.kind, target.definition)

    def encoded(values: pa.Array) -> pa.Array:
        try:
            check_taken(values)
            events = encode(values)
        except (SerializationError, *MISFITS) as error:
            raise SerializationError(f"a row can't be written as {target.options.format}: {told(error)}") from error
        return pa.array([header + event for event in events], pa.binary())

    return encoded
