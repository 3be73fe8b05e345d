"""The schemas of a stream, in the store of a real server: versions, rules, races."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from nadi.client import StreamManager, aio
from nadi.client.manager.streams import stores_of
from nadi.client.serializers import Avro, Compatibility, SchemaSerializer, Struct, codec
from nadi.errors import (
    ConflictError,
    InvalidArgumentError,
    ProtocolError,
    SchemaIncompatibleError,
    StreamNotFoundError,
    UnknownSchemaError,
)
from nadi.testing import RestartableServer


def struct(*fields: Any) -> Struct[Any]:
    return Struct(msgspec.defstruct("S", fields))


A, B = ("a", int), ("b", int)
B_WITH_DEFAULT = ("b", int, 0)
Step = Callable[[], Struct[Any]]


def test_versions_are_stored_and_found(nadi_manager: StreamManager, nadi_scope: str) -> None:
    nadi_manager.create_stream(nadi_scope, "s")
    schemas = nadi_manager.schemas(nadi_scope, "s")
    schemas.delete()
    assert schemas.versions() == []
    assert schemas.register(struct(A)) == 1
    assert schemas.register(struct(A, B_WITH_DEFAULT)) == 2
    assert schemas.register(struct(A)) == 1, "an old version stays one"
    first, second = schemas.versions()
    assert (first.id, first.format) == (1, "json-schema")
    assert schemas.definition(first) == struct(A).definition
    assert schemas.version(2) == second
    with pytest.raises(UnknownSchemaError, match="3"):
        schemas.version(3)
    nadi_manager.create_stream(nadi_scope, "s2")
    assert nadi_manager.schemas(nadi_scope, "s2").versions() == [], "each stream has its own"
    schemas.delete()
    assert schemas.versions() == []
    assert schemas.register(struct(B)) == 1
    nadi_manager.table(nadi_scope, "_schemas").put(b"s", b"damaged")
    with pytest.raises(ProtocolError):
        schemas.versions()
    schemas.delete()
    assert schemas.register(struct(A)) == 1


def test_rule_set_by_another_client_applies(nadi_manager: StreamManager, nadi_scope: str) -> None:
    nadi_manager.create_stream(nadi_scope, "ruled")
    schemas = nadi_manager.schemas(nadi_scope, "ruled")
    assert schemas.register(struct(A)) == 1
    nadi_manager.schemas(nadi_scope, "ruled").set_compatibility(Compatibility.NONE)
    assert schemas.register(struct(B)) == 2


OLD_FIELD_GONE, NEW_FIELD, NEW_FIELD_WITH_DEFAULT = struct(), struct(A, B), struct(A, B_WITH_DEFAULT)


@pytest.mark.parametrize(
    ("rule", "schema", "allowed"),
    [
        (Compatibility.NONE, struct(("a", str)), True),
        (Compatibility.BACKWARD, OLD_FIELD_GONE, True),
        (Compatibility.BACKWARD, NEW_FIELD, False),
        (Compatibility.BACKWARD, NEW_FIELD_WITH_DEFAULT, True),
        (Compatibility.FORWARD, OLD_FIELD_GONE, False),
        (Compatibility.FORWARD, NEW_FIELD, True),
        (Compatibility.FULL, OLD_FIELD_GONE, False),
        (Compatibility.FULL, NEW_FIELD, False),
        (Compatibility.FULL, NEW_FIELD_WITH_DEFAULT, True),
    ],
)
def test_rule_allows_or_rejects_schema(
    nadi_manager: StreamManager, nadi_scope: str, rule: Compatibility, schema: Struct[Any], allowed: bool
) -> None:
    nadi_manager.create_stream(nadi_scope, "s")
    schemas = nadi_manager.schemas(nadi_scope, "s")
    schemas.set_compatibility(rule)
    assert schemas.compatibility() is rule
    schemas.register(struct(A))
    if allowed:
        schemas.check(schema)
        assert schemas.register(schema) == 2
        return
    for attempt in (schemas.check, schemas.register):
        with pytest.raises(SchemaIncompatibleError, match=f"{nadi_scope}/s.* {rule}"):
            attempt(schema)
    assert len(schemas.versions()) == 1


@pytest.mark.parametrize(
    ("rule", "steps"),
    [
        (Compatibility.BACKWARD, [struct(A), struct(), struct(("a", str, ""))]),
        (Compatibility.FORWARD, [struct(("a", int, 0)), struct(), struct(("a", str))]),
        (Compatibility.FULL, [struct(("a", int, 0)), struct(), struct(("a", str, ""))]),
    ],
)
def test_transitive_rules_check_all_versions(
    nadi_manager: StreamManager, nadi_scope: str, rule: Compatibility, steps: list[Struct[Any]]
) -> None:
    for stream, used in (("latest", rule), ("all", Compatibility(f"{rule}_TRANSITIVE"))):
        nadi_manager.create_stream(nadi_scope, stream)
        schemas = nadi_manager.schemas(nadi_scope, stream)
        schemas.set_compatibility(used)
        schemas.register(steps[0])
        schemas.register(steps[1])
        if stream == "latest":
            assert schemas.register(steps[2]) == 3
            continue
        with pytest.raises(SchemaIncompatibleError, match="version 1") as caught:
            schemas.register(steps[2])
        assert any("$.a" in problem for problem in caught.value.problems)


def test_format_change_needs_rule_none(nadi_manager: StreamManager, nadi_scope: str) -> None:
    nadi_manager.create_stream(nadi_scope, "s")
    schemas = nadi_manager.schemas(nadi_scope, "s")
    schemas.register(struct(A))
    avro = Avro({"type": "record", "name": "S", "fields": [{"name": "a", "type": "int"}]})
    with pytest.raises(SchemaIncompatibleError, match=r"json-schema.* avro"):
        schemas.register(avro)
    schemas.set_compatibility(Compatibility.NONE)
    assert schemas.register(avro) == 2


def test_limits_and_missing_streams(
    nadi_manager: StreamManager, nadi_scope: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StreamNotFoundError):
        nadi_manager.schemas(nadi_scope, "none").register(struct(A))
    nadi_manager.create_stream(nadi_scope, "s")
    schemas = nadi_manager.schemas(nadi_scope, "s")
    monkeypatch.setattr("nadi.client.serializers.registry.SCHEMA_MAX_VERSIONS", 1)
    schemas.register(struct(A))
    with pytest.raises(ConflictError):
        schemas.register(struct())
    monkeypatch.setattr("nadi.client.serializers.registry.SCHEMA_MAX_BYTES", 10)
    with pytest.raises(InvalidArgumentError, match="10"):
        schemas.register(struct(A))


def test_concurrent_registrations_get_different_ids(nadi_server: RestartableServer, nadi_scope: str) -> None:

    async def race(schemas: list[SchemaSerializer[Any]], stream: str) -> list[int | BaseException]:
        managers = [aio.StreamManager(nadi_server.controller_uri) for _ in schemas]
        try:
            await managers[0].create_stream(nadi_scope, stream)
            return await asyncio.gather(
                *(m.schemas(nadi_scope, stream).register(s) for m, s in zip(managers, schemas, strict=True)),
                return_exceptions=True,
            )
        finally:
            for manager in managers:
                await manager.close()

    different: list[SchemaSerializer[Any]] = [struct((f"f{i}", int, 0)) for i in range(8)]
    assert sorted(asyncio.run(race(different, "compatible")), key=str) == list(range(1, 9))
    equal: list[SchemaSerializer[Any]] = [struct(A) for _ in range(4)]
    assert asyncio.run(race(equal, "equal")) == [1] * 4
    rivals: list[SchemaSerializer[Any]] = [struct(("a", kind)) for kind in (int, str, bool, bytes)]
    results = asyncio.run(race(rivals, "rivals"))
    assert [r for r in results if not isinstance(r, SchemaIncompatibleError)] == [1], "only the first may be"


def test_schemas_survive_a_crash(nadi_server: RestartableServer, nadi_manager: StreamManager, nadi_scope: str) -> None:
    nadi_manager.create_stream(nadi_scope, "s")
    schemas = nadi_manager.schemas(nadi_scope, "s")
    schemas.set_compatibility(Compatibility.FULL)
    schemas.register(struct(A))
    nadi_server.restart()
    assert schemas.compatibility() is Compatibility.FULL
    assert schemas.register(struct(A)) == 1


async def test_decoder_cache_is_limited(
    nadi_server: RestartableServer, nadi_scope: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codec, "SCHEMA_CACHE_DECODERS", 2)
    versions: list[Struct[Any]] = [Struct(msgspec.defstruct("S", [(f"f{i}", int, i)])) for i in range(4)]

    async with aio.StreamManager(nadi_server.controller_uri) as manager:
        await manager.create_stream(nadi_scope, "s")
        events = []
        for version in versions:
            encode = await codec.encoder(stores_of(manager), nadi_scope, "s", version)
            events.append(encode(version.type()))
        decoder = codec.decoder(stores_of(manager), nadi_scope, "s", versions[0])
        decode = await decoder.prepare(events)
        assert [decode(event) for event in events] == [versions[0].type()] * 4, "one block may have more"
        assert len(decoder._known) == 2
        for event in (events[0], events[1], events[0], events[2]):
            await decoder.prepare([event])
        assert list(decoder._known) == [events[0][:6], events[2][:6]]
