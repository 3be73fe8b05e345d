"""Check, frame and sort many events by segment without a Python step per event.

`Blocks` takes the arguments of write_batch and validates them before anything is written, as far as possible. It
yields blocks of about BLOCK_BYTES (or one event), so that a huge list waits for capacity block by block. A block
becomes one piece per segment: the framed bytes, in order. A piece remembers its routing keys, so that it can be
divided again if its segment is sealed before the piece is stored.

Each framing function takes an order, or None for the existing order, and returns a function that copies the framed
events between two indexes of that order. It copies so that a piece that waits long does not keep other pieces in
memory; with None, callers request all events at once.

`Routes` maps routing keys to segments and is immutable: when a segment is replaced, the writer makes another. Code that
worked without the writer's lock compares the instance to learn whether its work is still valid.
"""

from __future__ import annotations

import itertools
import struct
import sys
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from nadi.client.segments.tracing import BlockTrace
from nadi.client.writing.ack import Ack
from nadi.errors import EventTooLargeError, InvalidArgumentError
from nadi.limits import KIB, MAX_EVENT_BYTES, MAX_LARGE_EVENT_BYTES, WRITER_BLOCK_BYTES
from nadi.model.event import int_array, whole_events
from nadi.model.framing import HEADER_BYTES, event_header, event_headers
from nadi.model.keyspace import key_position
from nadi.naming import plural
from nadi.wire.fields import Buffer

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa


T = TypeVar("T")
Codes: TypeAlias = "np.ndarray[Any, np.dtype[np.uint16]]"
NO_KEY = 0xFFFF  # the code of events without a routing key; a stream has at most 10,000 segments
CACHED_KEYS = 100_000


class Routes(Generic[T]):
    """Map from routing keys to segments. table: (low, high, segment) for each part of the key space; a segment's code
    is its index in `segments`."""

    def __init__(self, table: Iterable[tuple[float, float, T]]) -> None:
        self.table = sorted(table, key=lambda piece: piece[1])
        self.segments = list(dict.fromkeys(segment for _, _, segment in self.table))
        self.code_of = {segment: code for code, segment in enumerate(self.segments)}
        self._highs = [high for _, high, _ in self.table]
        self._known = _KnownCodes(self)

    def segment(self, key: str) -> T:
        """Return the segment with the smallest high end that is not below the key's position."""
        if not isinstance(key, str):
            raise InvalidArgumentError(f"a routing key must be a str, not {type(key).__name__}")
        index = min(bisect_left(self._highs, key_position(key)), len(self.table) - 1)
        return self.table[index][2]

    def codes(self, keys: list[str | None]) -> Codes:
        """Return the code of each key's segment, or NO_KEY for None."""
        import numpy as np

        try:
            return np.frombuffer(b"".join(map(self._known.__getitem__, keys)), np.uint16)
        except TypeError:  # a list, say, which can't be a dict's key
            kind = next(type(key).__name__ for key in keys if not isinstance(key, str | None))
            raise InvalidArgumentError(f"a routing key must be a str, not {kind}") from None


class _KnownCodes(dict[str | None, bytes]):
    """Codes as two bytes by key, because joining bytes is faster than filling an array with numbers. Filled on lookup,
    from any thread."""

    def __init__(self, routes: Routes[Any]) -> None:
        super().__init__({None: _code(NO_KEY)})
        self._routes = routes
        self._code_of = {segment: _code(code) for segment, code in routes.code_of.items()}

    def __missing__(self, key: str | None) -> bytes:
        if len(self) >= CACHED_KEYS:  # not a cache of cachetools: 0.2 us more per event, and for one thread only
            self.clear()
        code = _code(NO_KEY) if key is None else self._code_of[self._routes.segment(key)]
        self[key] = code
        return code


def _code(number: int) -> bytes:
    return number.to_bytes(2, sys.byteorder)


_SMALL_BATCH_BYTES = 16 * KIB


class EventBatch:
    """Events that one append stores.

    entries: header, payload and routing key of each event in turn, so that one list operation adds a complete event
    even if the thread is interrupted; a piece of many events is stored as an empty header, its bytes and the piece.
    number: the writer's event number of the last event, once the batch was sent (at `sent_at`, by time.monotonic).
    end: the segment offset after the batch, -1 while unknown. trace: for its spans.
    """

    __slots__ = ("_more", "ack", "end", "entries", "number", "sent_at", "size", "trace")

    @property
    def is_large(self) -> bool:
        """Whether the batch is one event too large for an append, to be sent through a transient segment."""
        return self.size > MAX_EVENT_BYTES + HEADER_BYTES and len(self.entries) == 3

    def __init__(self, ack: Ack | None = None) -> None:
        self.entries: list[bytes | memoryview | str | FramedEvents | None] = []
        self.size = 0
        self.number = self.end = -1
        self.sent_at = 0.0
        self.ack = ack or Ack()
        self.trace: BlockTrace | None = None
        self._more = 0  # events of pieces beyond the first of each

    def __len__(self) -> int:
        return len(self.entries) // 3 + self._more

    def data(self) -> bytes:
        """Return the framed events as the segment stores them."""
        return b"".join(self._pieces())

    def data_to_send(self) -> list[Buffer]:
        """Return `data` in parts: small parts are joined when they are sent, and pieces alone aren't copied."""
        entries: list[Any] = self.entries
        if self._more and all(isinstance(key, FramedEvents) for key in entries[2::3]):
            return entries[1::3]
        return self._pieces() if self.size <= _SMALL_BATCH_BYTES else [self.data()]

    def _pieces(self) -> list[Any]:
        entries: list[Any] = self.entries
        parts: list[Any] = [b""] * (len(entries) // 3 * 2)
        parts[0::2] = entries[0::3]
        parts[1::2] = entries[1::3]
        return parts

    def parts(self) -> Iterator[tuple[bytes, bytes, str | FramedEvents | None]]:
        """Yield (header, payload, routing key) per event and (empty, bytes, piece) per piece, in order."""
        entries: list[Any] = self.entries
        return zip(entries[0::3], entries[1::3], entries[2::3], strict=True)

    def keys_of(self, indexes: Sequence[int]) -> list[str | None]:
        """Return the routing keys of the events at these ascending indexes."""
        entries: list[Any] = self.entries
        if not self._more:
            keys = [entries[3 * index + 2] for index in indexes]
            return [key.key(0) if isinstance(key, FramedEvents) else key for key in keys]
        keys, entry, first, count = [], -1, 0, 0
        for index in indexes:
            while index >= first + count:
                entry, first = entry + 1, first + count
                key = entries[3 * entry + 2]
                count = key.count if isinstance(key, FramedEvents) else 1
            keys.append(key.key(index - first) if isinstance(key, FramedEvents) else key)
        return keys

    def add(self, header: bytes, payload: bytes, key: str | None) -> None:
        self.entries += (header, payload, key)
        self.size += len(header) + len(payload)

    def add_piece(self, piece: FramedEvents) -> None:
        self._more += piece.count - 1
        self.entries += (b"", piece.framed, piece)
        self.size += len(piece.framed)


Positions: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
Framed: TypeAlias = Callable[[int, int], bytes | memoryview]
SMALL_BYTES = 256  # events up to this size are cheaper to copy than to look up


def framed_list(events: list[bytes], sizes: Positions, order: Positions | None) -> Framed:
    """Frame a list: sort references, then copy each event; small events of equal size are copied, then sorted."""
    size = int(sizes[0])
    header = event_header(size)
    same_size = bool((sizes == size).all())
    if same_size and size <= SMALL_BYTES and order is not None:
        return _rows(header.join([b"", *events]), HEADER_BYTES + size, order)
    in_order: Sequence[bytes] = events if order is None else itemgetter(*order.tolist())(events)
    if same_size:
        return lambda first, stop: header.join([b"", *in_order[first:stop]])
    parts: list[bytes] = [b""] * (2 * len(events))
    parts[0::2] = event_headers((sizes if order is None else sizes[order]).tolist())
    parts[1::2] = in_order
    return lambda first, stop: b"".join(parts[2 * first : 2 * stop])


def framed_array(events: pa.Array, sizes: Positions, order: Positions | None) -> Framed:
    """Frame an array: take headers and events alternately from an array of all headers followed by all events."""
    import numpy as np
    import pyarrow as pa

    count = len(events)
    headers = _binary(np.arange(0, HEADER_BYTES * count + 1, HEADER_BYTES), sizes.astype(">u8"))
    both = pa.concat_arrays([headers, events])
    interleaved = np.empty(2 * count, np.int64)
    interleaved[0::2] = np.arange(count) if order is None else order
    interleaved[1::2] = interleaved[0::2] + count
    take = _take_in_order(both, interleaved)
    return lambda first, stop: take(2 * first, 2 * stop)


def framed_again(framed: bytes | memoryview, order: Positions | None) -> Framed:
    """Reorder events that are framed already, without a copy if `order` is None."""
    import numpy as np

    block, size = whole_events(memoryview(framed))
    assert size == len(framed), "a piece is whole events"
    borders = np.append(block.starts, size)
    if order is None:
        return lambda first, stop: memoryview(framed)[borders[first] : borders[stop]]
    return _take_in_order(_binary(borders, framed), order)


def _rows(framed: bytes, size: int, order: Positions) -> Framed:
    """Reorder framed events of equal size."""
    import numpy as np
    import pyarrow as pa

    row = f"V{size}"
    rows = np.frombuffer(framed, row)

    def take(first: int, stop: int) -> memoryview:
        data = pa.allocate_buffer(size * (stop - first))  # Arrow reuses its memory, which avoids page faults
        rows.take(order[first:stop], out=np.frombuffer(data, row), mode="clip")  # "raise" would make another copy
        return memoryview(data)

    return take


def _take_in_order(array: pa.Array, order: Positions) -> Framed:
    return lambda first, stop: memoryview(array.take(int_array(order[first:stop])).buffers()[2])


def _binary(offsets: Positions, data: Any) -> pa.Array:
    """Return an Arrow array over `data`; the offsets must fit 32 bits, as a block's offsets do."""
    import numpy as np
    import pyarrow as pa

    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)


Events: TypeAlias = "Iterable[bytes] | pa.Array | pa.ChunkedArray"
RoutingKeys: TypeAlias = "str | Sequence[str | None] | pa.Array | pa.ChunkedArray | None"
BLOCK_BYTES = WRITER_BLOCK_BYTES // 2  # so that a block stays in a core's cache from step to step
FEW_EVENTS = 32  # smaller blocks are written event by event, which costs less than the array calls


class BatchKeys:
    """The routing keys of a batch: event i has the key names[indices[i]], or names[i] without indices."""

    def __init__(self, names: list[str | None], routes: Routes[Any], indices: Positions | None = None) -> None:
        """Look up all keys in `routes`, which also checks them."""
        self._names, self._indices, self._routes = names, indices, routes
        codes = routes.codes(names)
        self._codes = codes if indices is None else codes[indices]

    def __len__(self) -> int:
        return len(self._codes)

    def codes(self, events: Positions, routes: Routes[Any]) -> Codes:
        """Return the code of each event's segment. Other routes are asked only for these events, because the caller
        may hold the writer's lock and the batch may have millions of events."""
        import numpy as np

        if routes is self._routes:
            return self._codes[events]
        if self._indices is None:
            return routes.codes([self._names[event] for event in events.tolist()])
        used, inverse = np.unique(self._indices[events], return_inverse=True)
        return routes.codes([self._names[name] for name in used.tolist()])[inverse]

    def of(self, event: int) -> str | None:
        return self._names[event if self._indices is None else self._indices[event]]


@dataclass(frozen=True, slots=True)
class FramedEvents:
    """Framed events of one segment. keys: one for all, or the batch's keys, which `events` indexes."""

    framed: bytes | memoryview
    count: int
    keys: BatchKeys | str | None
    events: Positions | None

    def key(self, event: int) -> str | None:
        """Return the routing key of event number `event`, from 0."""
        if not isinstance(self.keys, BatchKeys):
            return self.keys
        assert self.events is not None, "a batch's keys come with the events' indexes"
        return self.keys.of(int(self.events[event]))

    def divide(self, routes: Routes[Any], spare: int) -> list[tuple[int, FramedEvents]]:
        """Divide the piece among the segments that replace its segment; see BatchBlock.pieces."""
        if not isinstance(self.keys, BatchKeys):
            return [(_one_code(self.keys, routes, spare), self)]
        assert self.events is not None, "a batch's keys come with the events' indexes"
        return _pieces(self.keys, self.events, routes, spare, partial(framed_again, self.framed))


class BatchBlock:
    """Consecutive events of a batch, starting with number `first`; sizes: bytes per event."""

    def __init__(
        self, events: list[bytes] | pa.Array, sizes: Positions, keys: BatchKeys | str | None, first: int
    ) -> None:
        self._events, self._sizes, self._keys, self._first = events, sizes, keys, first

    def __len__(self) -> int:
        return len(self._sizes)

    def one_by_one(self) -> Iterator[tuple[bytes, str | None]]:
        events = self._events if isinstance(self._events, list) else self._events.to_pylist()
        for number, event in enumerate(events, self._first):
            yield event, self._keys.of(number) if isinstance(self._keys, BatchKeys) else self._keys

    def pieces(self, routes: Routes[Any], spare: int) -> list[tuple[int, FramedEvents]]:
        """Return (segment code, piece) for each segment; events without a key go to the code `spare`."""
        import numpy as np

        count = len(self)
        framed = partial(framed_list if isinstance(self._events, list) else framed_array, self._events, self._sizes)
        if not isinstance(self._keys, BatchKeys):
            piece = FramedEvents(framed(None)(0, count), count, self._keys, None)
            return [(_one_code(self._keys, routes, spare), piece)]
        indexes = np.arange(self._first, self._first + count)
        return _pieces(self._keys, indexes, routes, spare, framed)


class Blocks:
    """Iterator over the blocks of one write_batch call; usable once."""

    def __init__(self, events: Events, routing_keys: RoutingKeys, routes: Routes[Any]) -> None:
        import pyarrow as pa

        self._blocks: Iterator[BatchBlock]
        if isinstance(events, pa.Array | pa.ChunkedArray):
            array = _plain(events)
            self._blocks = self._cut(array, _sizes_of_array(array), routing_keys, routes)
        elif isinstance(events, pa.Table | pa.RecordBatch):
            raise InvalidArgumentError("events can't be a table: pass one of its columns, such as table['reading']")
        elif isinstance(events, Collection):
            checked, sizes = _checked(list(events))
            self._blocks = self._cut(checked, sizes, routing_keys, routes)
        elif not isinstance(events, Iterable):
            raise InvalidArgumentError(f"events must be an iterable of bytes or an array, not {type(events).__name__}")
        else:
            self._blocks = self._cut_iterator(events, routing_keys, routes)

    def __iter__(self) -> Iterator[BatchBlock]:
        return self._blocks

    def _cut(self, events: Any, sizes: Positions, routing_keys: Any, routes: Routes[Any]) -> Iterator[BatchBlock]:
        import numpy as np

        largest = int(sizes.max(initial=0))
        if largest > MAX_LARGE_EVENT_BYTES:
            raise EventTooLargeError(largest, MAX_LARGE_EVENT_BYTES)
        keys = _keys(routing_keys, len(sizes), routes)
        ends = np.cumsum(sizes + HEADER_BYTES)
        return _cut(events, sizes, ends, keys)

    def _cut_iterator(self, events: Iterable[bytes], routing_keys: Any, routes: Routes[Any]) -> Iterator[BatchBlock]:
        """Check the events list by list, because the iterator may never end."""
        import pyarrow as pa

        one_for_all = routing_keys is None or isinstance(routing_keys, str)
        if isinstance(routing_keys, pa.Array | pa.ChunkedArray):
            routing_keys = routing_keys.to_pylist()
        keys_left = iter(() if one_for_all else routing_keys)
        for listed in _lists(events):
            keys = routing_keys if one_for_all else list(itertools.islice(keys_left, len(listed)))
            checked, sizes = _checked(listed)
            yield from self._cut(checked, sizes, keys, routes)
        if next(keys_left, keys_left) is not keys_left:
            raise InvalidArgumentError("there are more routing keys than events: pass one per event, or one for all")


def _plain(array: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Cast the array to a type that Arrow's functions for binaries and strings accept."""
    import pyarrow as pa

    kind = array.type
    plain = {pa.binary_view(): pa.large_binary(), pa.string_view(): pa.large_string(), pa.null(): pa.string()}
    if pa.types.is_dictionary(kind) and kind.value_type in plain:  # such as Polars' categoricals
        return array.cast(pa.dictionary(kind.index_type, plain[kind.value_type], kind.ordered))
    return array.cast(plain[kind]) if kind in plain else array


def _lists(events: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Yield lists of about BLOCK_BYTES."""
    gathered: list[bytes] = []
    size = 0
    for event in events:
        gathered.append(event)
        size += HEADER_BYTES + len(as_bytes(event))
        if size >= BLOCK_BYTES:
            yield gathered
            gathered, size = [], 0
    if gathered:
        yield gathered


def as_bytes(event: object) -> bytes:
    """Return the event as bytes, copied if it is a bytearray or memoryview; else raise InvalidArgumentError."""
    if type(event) is bytes:
        return event
    if isinstance(event, bytes | bytearray | memoryview):
        return bytes(event)
    advice = "pass a list of events" if isinstance(event, int) else "encode it first"
    raise InvalidArgumentError(f"an event must be bytes, not {type(event).__name__}: {advice}")


def _checked(events: list[Any]) -> tuple[list[bytes], Positions]:
    """Return the events as bytes, and their sizes."""
    import numpy as np

    if list(map(type, events)).count(bytes) < len(events):
        events = [as_bytes(event) for event in events]
    sizes = list(map(len, events))
    if sizes and sizes.count(sizes[0]) == len(sizes):
        return events, np.full(len(sizes), sizes[0])
    return events, np.frombuffer(struct.pack(f"{len(sizes)}q", *sizes), np.int64)


def _sizes_of_array(events: pa.Array | pa.ChunkedArray) -> Positions:
    import numpy as np
    import pyarrow as pa

    kinds = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
    if not any(is_kind(events.type) for is_kind in kinds):
        raise InvalidArgumentError(f"events must be binary, not {events.type}: cast or encode them first")
    if events.null_count:
        raise InvalidArgumentError(f"{events.null_count:,} events are null: drop or fill them first")
    import pyarrow.compute as pc  # a client starts sooner without it; only arrays need it

    sizes: Positions = pc.binary_length(events).to_numpy().astype(np.int64)
    return sizes


def _keys(routing_keys: Any, count: int, routes: Routes[Any]) -> BatchKeys | str | None:
    import pyarrow as pa

    if routing_keys is None or isinstance(routing_keys, str):
        return routing_keys
    if isinstance(routing_keys, pa.Array | pa.ChunkedArray):
        keys = _keys_of_array(_plain(routing_keys), routes)
    elif isinstance(routing_keys, Iterable):
        keys = BatchKeys(list(routing_keys), routes)
    else:
        raise InvalidArgumentError(f"routing keys must be a str, or one per event, not {type(routing_keys).__name__}")
    if len(keys) != count:
        raise InvalidArgumentError(
            f"{plural(len(keys), 'routing key')} for {plural(count, 'event')}: pass one per event, or one for all"
        )
    return keys


def _keys_of_array(array: pa.Array | pa.ChunkedArray, routes: Routes[Any]) -> BatchKeys:
    import numpy as np
    import pyarrow as pa

    kind = array.type.value_type if pa.types.is_dictionary(array.type) else array.type
    if not any(is_kind(kind) for is_kind in (pa.types.is_string, pa.types.is_large_string)):
        raise InvalidArgumentError(f"routing keys must be strings, not {array.type}: cast them first")
    chunks = array.chunks if isinstance(array, pa.ChunkedArray) else [array]
    encoded = pa.chunked_array(chunks, array.type)
    if not pa.types.is_dictionary(array.type):
        encoded = encoded.dictionary_encode()
    encoded = encoded.unify_dictionaries()
    names: list[str | None] = encoded.chunk(0).dictionary.to_pylist() if encoded.num_chunks else []
    no_key = len(names)
    parts = [chunk.indices.fill_null(no_key).to_numpy(zero_copy_only=False) for chunk in encoded.chunks]
    return BatchKeys([*names, None], routes, np.concatenate([np.empty(0, np.int64), *parts]).astype(np.int64))


def _cut(events: Any, sizes: Positions, ends: Positions, keys: BatchKeys | str | None) -> Iterator[BatchBlock]:
    import numpy as np
    import pyarrow as pa

    start = written = 0
    while start < len(sizes):
        stop = len(sizes)
        if ends[-1] - written > BLOCK_BYTES * 3 // 2:  # a small last block would cost as much as a large one
            stop = max(start + 1, int(np.searchsorted(ends, written + BLOCK_BYTES, "right")))
        block = events[start:stop]
        if not isinstance(block, list):
            if isinstance(block, pa.ChunkedArray):
                block = block.combine_chunks()
            block = block.cast(pa.binary())
        yield BatchBlock(block, sizes[start:stop], keys, start)
        start, written = stop, int(ends[stop - 1])


def _one_code(key: str | None, routes: Routes[Any], spare: int) -> int:
    return spare if key is None else routes.code_of[routes.segment(key)]


def _pieces(
    keys: BatchKeys, indexes: Positions, routes: Routes[Any], spare: int, framed: Callable[[Positions | None], Framed]
) -> list[tuple[int, FramedEvents]]:
    """Sort events by segment. indexes: each event's index in `keys`; framed: frames the events in a given order."""
    import numpy as np

    codes = keys.codes(indexes, routes)
    codes = np.where(codes == NO_KEY, np.uint16(spare), codes)
    counts = np.bincount(codes).tolist()
    if counts[-1] == len(codes):
        return [(len(counts) - 1, FramedEvents(framed(None)(0, len(codes)), len(codes), keys, indexes))]
    order = codes.argsort(kind="stable")
    take = framed(order)
    pieces = []
    first = 0
    for code, count in enumerate(counts):
        if count:
            stop = first + count
            pieces.append((code, FramedEvents(take(first, stop), count, keys, indexes[order[first:stop]])))
            first = stop
    return pieces
