"""The schemas of a stream: versions, stored in the table `_schemas` of its scope.

A stream's record lists its versions, oldest first; version n has the id n, which events carry. A definition is stored
under its digest, before the record that names it, so a crash in between is harmless. The record changes by
compare-and-set only: of two writers that register at once, the second retries and is checked against the first one's
schema. Versions are never changed or removed, so an event's schema exists as long as the stream's record.

The stream's rule decides which schema may follow which. BACKWARD: new readers read old events. FORWARD: old readers
read new events. FULL: both. Each applies to the latest version, the TRANSITIVE forms to all versions.
"""

from __future__ import annotations

from enum import StrEnum
from hashlib import sha256

import msgspec

from nadi.client.control.arguments import checked
from nadi.client.segments.stores import SegmentStores
from nadi.client.serializers.plain import SchemaSerializer, T
from nadi.client.tables.catalog import CatalogRecord, RecordKind
from nadi.client.tables.table import Table
from nadi.errors import (
    ConflictError,
    InvalidArgumentError,
    ProtocolError,
    SchemaIncompatibleError,
    StreamNotFoundError,
    UnknownSchemaError,
)
from nadi.limits import SCHEMA_MAX_BYTES, SCHEMA_MAX_VERSIONS
from nadi.naming import SCHEMAS_TABLE


class Compatibility(StrEnum):
    """Which schema may follow the earlier ones of its stream."""

    NONE = "NONE"
    BACKWARD = "BACKWARD"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD = "FORWARD"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def is_backward(self) -> bool:
        return self.startswith(("BACKWARD", "FULL"))

    @property
    def is_forward(self) -> bool:
        return self.startswith(("FORWARD", "FULL"))

    @property
    def is_transitive(self) -> bool:
        return self.endswith("_TRANSITIVE")


class SchemaVersion(msgspec.Struct, frozen=True):
    """One version as the record lists it; `digest` is the SHA-256 of format and definition, in hex."""

    id: int
    format: str
    digest: str


class _StoredSchemas(msgspec.Struct, frozen=True):
    compatibility: Compatibility = Compatibility.BACKWARD
    versions: tuple[SchemaVersion, ...] = ()


@checked()
class SchemaGroup:
    """The schemas of one stream; made by `StreamManager.schemas`."""

    def __init__(self, stores: SegmentStores, scope: str, stream: str) -> None:
        self.scope, self.stream = scope, stream
        self._stores = stores
        self._table = Table(stores, scope, SCHEMAS_TABLE)
        kind: RecordKind[_StoredSchemas] = RecordKind(
            "the schemas of stream",
            scope,
            lambda name: "delete them with schemas(...).delete(); their events become unreadable",
            lambda name: StreamNotFoundError(scope, name),
            lambda _, value: msgspec.json.decode(value, type=_StoredSchemas),
        )
        self._record = CatalogRecord(self._table, kind, stream)

    async def register(self, serializer: SchemaSerializer[T]) -> int:
        """Return the id of the serializer's schema; register it as the latest version if it is new.

        SchemaIncompatibleError if the stream's rule forbids it; UnavailableError: a retry is safe.
        """
        definition = serializer.definition
        if len(definition) > SCHEMA_MAX_BYTES:
            raise InvalidArgumentError(
                f"the schema has {len(definition):,} bytes, more than the limit of {SCHEMA_MAX_BYTES:,}: remove "
                "its comments, or split it"
            )
        digest = _digest(serializer.schema_format, definition)

        async def extended(stored: _StoredSchemas | None) -> _StoredSchemas | None:
            record = stored or _StoredSchemas()
            if any(version.digest == digest for version in record.versions):
                return None
            await self._check(serializer, record)
            if len(record.versions) >= SCHEMA_MAX_VERSIONS:
                raise ConflictError(f"{self._name} has {SCHEMA_MAX_VERSIONS} schemas, the limit: write to a new stream")
            if stored is None:
                await self._create_table()
            await self._table.put(self._definition_key(digest), definition)
            new = SchemaVersion(len(record.versions) + 1, serializer.schema_format, digest)
            return _StoredSchemas(record.compatibility, (*record.versions, new))

        await self._record.find()  # the check needs the latest version, which another writer may have stored
        stored = await self._record.put(extended)
        assert stored is not None, "`extended` added the schema"
        return next(version.id for version in stored.versions if version.digest == digest)

    async def check(self, serializer: SchemaSerializer[T]) -> None:
        """SchemaIncompatibleError if the stream's rule forbids the schema; nothing is stored."""
        record = await self._read()
        if _digest(serializer.schema_format, serializer.definition) not in {v.digest for v in record.versions}:
            await self._check(serializer, record)

    async def versions(self) -> list[SchemaVersion]:
        """Return all versions, oldest first."""
        return list((await self._read()).versions)

    async def version(self, schema_id: int) -> SchemaVersion:
        """Return the version with that id; UnknownSchemaError if it doesn't exist."""
        versions = (await self._read()).versions
        if not 1 <= schema_id <= len(versions):
            raise UnknownSchemaError(self.scope, self.stream, schema_id)
        return versions[schema_id - 1]

    async def definition(self, version: SchemaVersion) -> bytes:
        """Return the schema as its serializer stored it."""
        entry = await self._table.get(self._definition_key(version.digest))
        if entry is None:
            raise UnknownSchemaError(self.scope, self.stream, version.id)
        return entry.value

    async def compatibility(self) -> Compatibility:
        """Return the stream's rule; BACKWARD unless it was set."""
        return (await self._read()).compatibility

    async def set_compatibility(self, rule: Compatibility) -> None:
        """Set the rule for schemas registered after this call."""
        rule = Compatibility(rule)

        async def ruled(stored: _StoredSchemas | None) -> _StoredSchemas:
            if stored is None:
                await self._create_table()
            return _StoredSchemas(rule, () if stored is None else stored.versions)

        await self._record.put(ruled)

    async def delete(self) -> None:
        """Delete all schemas and the rule of a deleted stream: events that name them become unreadable."""
        try:
            record = await self._read()
        except ProtocolError:  # an unreadable record's definitions stay, harmlessly
            record = _StoredSchemas()
        await self._record.delete()  # first: definitions without a record are harmless
        for version in record.versions:
            await self._table.remove(self._definition_key(version.digest))

    # --- inside -----------------------------------------------------------------------------

    @property
    def _name(self) -> str:
        return f"stream {self.scope}/{self.stream}"

    def _definition_key(self, digest: str) -> bytes:
        return f"{self.stream}/{digest}".encode()

    async def _read(self) -> _StoredSchemas:
        return await self._record.find() or _StoredSchemas()

    async def _create_table(self) -> None:
        if not await self._stores.controller.stream_exists(self.scope, self.stream):
            raise StreamNotFoundError(self.scope, self.stream)
        await self._table.create()

    async def _check(self, serializer: SchemaSerializer[T], record: _StoredSchemas) -> None:
        rule = record.compatibility
        if rule is Compatibility.NONE:
            return
        earlier = record.versions if rule.is_transitive else record.versions[-1:]
        for version in reversed(earlier):
            if version.format != serializer.schema_format:
                problems = [f"the format changes from {version.format} to {serializer.schema_format}"]
            else:
                old, new = await self.definition(version), serializer.definition
                problems = []
                if rule.is_backward:
                    problems += [f"reading old events: {p}" for p in serializer.incompatibilities(new, old)]
                if rule.is_forward:
                    problems += [
                        f"reading new events with the old schema: {p}" for p in serializer.incompatibilities(old, new)
                    ]
            if problems:
                raise SchemaIncompatibleError(
                    f"the schema can't follow version {version.id} of {self._name} under the rule {rule}",
                    problems,
                    "Change the schema so that both are readable, write to a new stream, or set another rule with "
                    "schemas(...).set_compatibility",
                )


def _digest(schema_format: str, definition: bytes) -> str:
    return sha256(schema_format.encode() + b"\n" + definition).hexdigest()
