"""Whether all that one JSON schema describes is accepted by another: for the schemas that msgspec makes.

`differences(reader, writer)` names each place where the writer's type has values that the reader's refuses. It
errs on the safe side: a keyword it doesn't know has to be the same on both sides, and a union branch of the
writer has to fit one branch of the reader whole.

>>> old = {"type": "object", "properties": {"wh": {"type": "integer"}}, "required": ["wh"]}
>>> new = {"type": "object", "properties": {"wh": {"type": "string"}, "at": {"type": "integer"}}, "required": ["at"]}
>>> differences(new, old)
['$.wh: string is read where integer was written', "$.at: is required, and isn't always written"]
"""

from __future__ import annotations

from typing import Any, TypeAlias

Schema: TypeAlias = dict[str, Any]

_NOTES = {"title", "description", "default", "examples", "deprecated", "$defs", "$ref", "discriminator", "uniqueItems"}
_STRUCTURE = {
    "type", "anyOf", "enum", "properties", "required", "additionalProperties", "items", "prefixItems", "minItems",
    "maxItems",
}  # fmt: skip
_ANY: Schema = {}
_NOTHING: Schema = {"enum": []}
_LOWER = {"minimum", "exclusiveMinimum", "minLength", "minProperties"}
_UPPER = {"maximum", "exclusiveMaximum", "maxLength", "maxProperties"}


def differences(reader: Schema, writer: Schema) -> list[str]:
    """What of the writer's schema the reader's doesn't accept, with the place of each."""
    return _Comparison(reader, writer).compare(reader, writer, "$")


class _Comparison:
    """One run over two schemas; pairs in progress count as compatible, so that recursive types end."""

    def __init__(self, reader: Schema, writer: Schema) -> None:
        self._reader_types: dict[str, Schema] = reader.get("$defs", {})
        self._writer_types: dict[str, Schema] = writer.get("$defs", {})
        self._pairs: set[tuple[int, int]] = set()  # by identity, which is unique while both schemas live

    def compare(self, reader: Any, writer: Any, path: str) -> list[str]:
        reader, writer = _resolve(reader, self._reader_types), _resolve(writer, self._writer_types)
        pair = (id(reader), id(writer))
        if pair in self._pairs:
            return []
        before = set(self._pairs)
        self._pairs.add(pair)
        found = self._compare(reader, writer, path)
        if found:
            self._pairs = before  # what was found good on the way may rest on this pair
        return found

    def _compare(self, reader: Schema, writer: Schema, path: str) -> list[str]:
        if not reader.keys() - _NOTES:
            return []  # any value
        if "anyOf" in writer:
            return [line for branch in writer["anyOf"] for line in self.compare(reader, branch, path)]
        if "anyOf" in reader:
            return self._compare_branches(reader["anyOf"], writer, path)
        if "enum" in writer:
            return [
                f"{path}: {value!r} is written and not read" for value in writer["enum"] if not _accepts(reader, value)
            ]
        if "enum" in reader:
            return [f"{path}: only {reader['enum']} are read, and {_name(writer)} was written"]
        wanted, given = reader.get("type"), writer.get("type")
        if wanted != given and (wanted, given) != ("number", "integer"):
            return [f"{path}: {wanted} is read where {_name(writer)} was written"]
        found = _constraints(reader, writer, path)
        if wanted == "object":
            found += self._compare_objects(reader, writer, path)
        elif wanted == "array":
            found += self._compare_arrays(reader, writer, path)
        return found

    def _compare_branches(self, branches: list[Any], writer: Schema, path: str) -> list[str]:
        if "enum" in writer:  # its values may be of several branches
            return [
                f"{path}: {value!r} is written and not read"
                for value in writer["enum"]
                if not any(_accepts(_resolve(branch, self._reader_types), value) for branch in branches)
            ]
        tried: list[list[str]] = []
        for branch in branches:
            found = self.compare(branch, writer, path)
            if not found:
                return []
            if _resolve(branch, self._reader_types).get("type") == writer.get("type"):
                tried.append(found)
        return min(tried, key=len, default=[f"{path}: {_name(writer)} was written and is none of what is read"])

    def _compare_objects(self, reader: Schema, writer: Schema, path: str) -> list[str]:
        read: Schema = reader.get("properties", {})
        written: Schema = writer.get("properties", {})
        # msgspec's structs write their fields only; a dict writes any
        others = writer.get("additionalProperties", True) if "properties" not in writer else False
        found: list[str] = []
        for name, schema in read.items():
            if name in written:
                found += self.compare(schema, written[name], f"{path}.{name}")
            elif others is not False:
                found += self.compare(schema, others, f"{path}.{name}")
        always = set(writer.get("required", ()))
        found += [
            f"{path}.{name}: is required, and isn't always written"
            for name in reader.get("required", ())
            if name not in always
        ]
        rest = reader.get("additionalProperties", True)
        unknown = {name: schema for name, schema in written.items() if name not in read}
        if rest is False:
            found += [f"{path}.{name}: is written, and unknown fields are forbidden" for name in unknown]
            if others is not False:
                found.append(f"{path}: a dict was written, and unknown fields are forbidden")
        elif rest is not True:
            for name, schema in unknown.items():
                found += self.compare(rest, schema, f"{path}.{name}")
            if others is not False:
                found += self.compare(rest, others, f"{path}[...]")
        return found

    def _compare_arrays(self, reader: Schema, writer: Schema, path: str) -> list[str]:
        found: list[str] = []
        least, most = _lengths(writer)
        if least < reader.get("minItems", 0):
            found.append(f"{path}: {reader['minItems']} items are needed and {least} may be written")
        longest = reader.get("maxItems")
        if longest is not None and (most is None or most > longest):
            found.append(f"{path}: {longest} items are read at most and more may be written")
        fixed = max(len(reader.get("prefixItems", ())), len(writer.get("prefixItems", ())))
        for index in range(fixed if most is None else min(fixed, most)):
            found += self.compare(_item(reader, index), _item(writer, index), f"{path}[{index}]")
        if most is None or most > fixed:
            found += self.compare(reader.get("items", True), writer.get("items", True), f"{path}[...]")
        return found


def _resolve(schema: Any, types: dict[str, Schema]) -> Schema:
    """The schema that is meant, always the same object for the same place."""
    if isinstance(schema, bool):
        return _ANY if schema else _NOTHING
    while "$ref" in schema:
        schema = types[schema["$ref"].rpartition("/")[2]]
    return schema  # type: ignore[no-any-return]


def _item(schema: Schema, index: int) -> Any:
    fixed = schema.get("prefixItems", ())
    return fixed[index] if index < len(fixed) else schema.get("items", True)


def _lengths(writer: Schema) -> tuple[int, int | None]:
    """(least, most) items that are written; an array-like struct writes each of its fields."""
    most = writer.get("maxItems")
    if most is None and "prefixItems" in writer:
        most = len(writer["prefixItems"])
    return writer.get("minItems", 0), most


def _constraints(reader: Schema, writer: Schema, path: str) -> list[str]:
    found = []
    for key in sorted((reader.keys() | writer.keys()) - _NOTES - _STRUCTURE):
        wanted, given = reader.get(key), writer.get(key)
        if key in _LOWER or key in _UPPER:
            if wanted is not None and (given is None or (given < wanted if key in _LOWER else given > wanted)):
                found.append(f"{path}: {key} is {wanted} for the reader and {given} for the writer")
        elif wanted != given and not (wanted is None and key in ("pattern", "multipleOf")):
            found.append(f"{path}: {key} is {wanted} for the reader and {given} for the writer")
    return found


def _accepts(reader: Schema, value: Any) -> bool:
    """Whether one value that an enum or Literal writes is read; only what is plain enough to be sure of."""
    if not reader.keys() - _NOTES:
        return True
    if "anyOf" in reader:
        return any(_accepts(branch, value) for branch in reader["anyOf"] if "$ref" not in branch)
    if "enum" in reader:
        return any(value == known and type(value) is type(known) for known in reader["enum"])
    if reader.keys() - _NOTES - {"type"}:
        return False
    return reader["type"] in {str: ("string",), int: ("integer", "number"), type(None): ("null",)}.get(type(value), ())


def _name(schema: Schema) -> str:
    if "enum" in schema:
        return f"one of {schema['enum']}"
    return str(schema.get("format") or schema.get("type") or "any value")
