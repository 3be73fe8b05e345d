"""What a reader keeps of the schemas it met is bounded, and the last used stay."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from nadi.client import aio
from nadi.client.manager.streams import stores_of
from nadi.client.serializers import Struct, codec
from nadi.testing import RestartableServer


async def test_decoders_are_kept_up_to_a_limit(
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
        assert isinstance(decoder, codec._SchemaDecoder)
        assert len(decoder._known) == 2
        for event in (events[0], events[1], events[0], events[2]):
            await decoder.prepare([event])
        assert list(decoder._known) == [events[0][:6], events[2][:6]]
