"""Requests with an Idempotency-Key: each is written once, however often it is sent, to whichever server.

The key makes a writer's id, and a fingerprint of the request the one number of all its events; so a segment says, for
each key, whether a request with it wrote there, and whether it was this one (docs/decisions/0028). Nothing about it is
kept in memory, so it holds across restarts and servers.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from weakref import WeakValueDictionary

from cachetools import TTLCache

from nadi.client.numbered.places import StreamShape, epoch_at
from nadi.client.numbered.writer import NumberedEvent, NumberedWriter
from nadi.client.segments.stores import SegmentStores
from nadi.controller.rest.intake import Sent
from nadi.controller.state.metadata import StreamName
from nadi.errors import ConflictError, InvalidArgumentError, NadiError
from nadi.ingest.http.batch import KEY_HEADER, Batch
from nadi.limits import (
    INGEST_ANSWER_S,
    INGEST_BODY_MAX_BYTES,
    INGEST_HORIZON_S,
    INGEST_REMEMBERED_S,
    INGEST_SETUPS,
    INGEST_STREAMS,
)
from nadi.model.keyspace import key_position


def numbered(batch: Batch, sent: Sent, name: str) -> list[NumberedEvent]:
    """A request's events with the number that stands for it; those without a key go where `name` does, all together."""
    number, spare = _fingerprint(sent), key_position(name)
    events = batch.events if isinstance(batch.events, list) else batch.events.to_pylist()
    if (size := sum(map(len, events))) > INGEST_BODY_MAX_BYTES:  # those of a segment are one append
        raise InvalidArgumentError(
            f"the events have {size:,} bytes, and with an Idempotency-Key at most {INGEST_BODY_MAX_BYTES:,}: send "
            "fewer at a time"
        )
    keys = batch.keys
    if keys is None or isinstance(keys, str):
        position = spare if keys is None else key_position(keys)
        return [NumberedEvent(number, position, event) for event in events]
    known: dict[str | None, float] = {None: spare}
    found = []
    for event, key in zip(events, keys, strict=True):
        if key is not None and key not in known:
            known[key] = key_position(key)
        found.append(NumberedEvent(number, known[key], event))
    return found


def _fingerprint(sent: Sent) -> int:
    told = [sent.media, sent.query.get("key"), sent.query.get("key-field"), sent.headers.get(KEY_HEADER)]
    told += sorted(f"{name}: {value}" for name, value in sent.headers.items() if name.startswith("ce-"))
    digest = hashlib.sha256(repr(told).encode())
    digest.update(sent.body)
    return int.from_bytes(digest.digest()[:8], "big") >> 1  # not negative


class Once:
    """What one caller writes so."""

    def __init__(self, stores: SegmentStores) -> None:
        self._stores = stores
        self._shapes: TTLCache[StreamName, tuple[StreamShape, int]] = TTLCache(INGEST_STREAMS, INGEST_HORIZON_S)
        self._turns: WeakValueDictionary[tuple[StreamName, str], asyncio.Lock] = WeakValueDictionary()
        self._setups = 0

    async def write(self, stream: StreamName, name: str, events: list[NumberedEvent]) -> None:
        """Return once the events of the request of that name are stored; ConflictError if it was another request's."""
        turn = self._turns.get((stream, name))
        if turn is None:
            turn = self._turns[stream, name] = asyncio.Lock()
        async with turn:  # two at a time would end each other's session
            shape, since = await self._shape(stream)
            writer = NumberedWriter(
                shape,
                hashlib.blake2b(name.encode(), digest_size=16, person=b"nadi once").digest(),
                since_epoch=since,
                only_number=events[0].number,
                purpose=self._purpose(),
            )
            try:
                await writer.write(events, INGEST_ANSWER_S)
            except ConflictError as error:
                self._shapes.pop(stream, None)
                if type(error) is ConflictError:
                    raise ConflictError(
                        f"the Idempotency-Key {name[:60]!r} was used for other data of this stream: take a new one"
                    ) from None
                raise
            except NadiError:
                self._shapes.pop(stream, None)
                raise
            finally:
                writer.close()

    async def _shape(self, stream: StreamName) -> tuple[StreamShape, int]:
        """The stream's, and the epoch since which a request may have been written before."""
        found = self._shapes.get(stream)
        if found is None:
            shape = StreamShape(self._stores, *stream)
            since = await epoch_at(shape, max(0, round((time.time() - INGEST_REMEMBERED_S) * 1000)))
            found = self._shapes[stream] = shape, since
        return found

    def _purpose(self) -> str:
        """Names the connections: a server limits how many writers are set up on one, so there are new ones at times."""
        turn, self._setups = self._setups // INGEST_SETUPS, self._setups + 1
        if self._setups % INGEST_SETUPS == 1 and turn > 1:
            self._stores.release(f"once {turn - 2}")  # nothing is on its way there any more
        return f"once {turn}"
