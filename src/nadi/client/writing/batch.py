"""A batch of events on its way into one segment, and the acknowledgement that all its events share."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any

from nadi.client.control.arguments import check_timeout
from nadi.client.writing.blocks import Piece
from nadi.errors import NadiError, RequestTimeoutError
from nadi.limits import MAX_EVENT_BYTES
from nadi.model.framing import HEADER_BYTES
from nadi.wire.fields import Parts

_SETTLING = threading.Lock()


class Ack:
    """Whether events are stored: await it, or wait with `result` in a thread without an event loop.

    A batch that is spread over successors of its segment, or a call that spans several batches,
    has an Ack of several parts: done when all are, failed if one is.
    """

    __slots__ = ("_error", "_future", "_parts")

    def __init__(self, parts: int = 1) -> None:
        self._future: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._parts = parts
        self._error: NadiError | None = None

    @classmethod
    def of_all(cls, acks: Iterable[Ack]) -> Ack:
        """Combine several Acks into one; it is done at once if there are none."""
        distinct = list(dict.fromkeys(acks))
        if len(distinct) == 1:
            return distinct[0]
        whole = cls(len(distinct) or 1)
        if not distinct:
            whole.settle(None)
        for ack in distinct:
            ack._future.add_done_callback(lambda future: whole.settle(_outcome(future)))
        return whole

    def done(self) -> bool:
        """Return whether the outcome is known: the events are stored, or have failed."""
        return self._future.done()

    def result(self, timeout: float | None = None) -> None:
        """Return once the events are stored, or raise the error that prevented it.

        RequestTimeoutError after `timeout` seconds; the events may still be stored later.
        """
        check_timeout(timeout)
        try:
            return self._future.result(timeout)
        except TimeoutError as error:
            if isinstance(error, NadiError):
                raise
            raise RequestTimeoutError(f"not acknowledged within {timeout} s") from None

    def add_done_callback(self, function: Callable[[Ack], object]) -> None:
        """Call `function` with this Ack once it is done, in whichever thread settles it."""
        self._future.add_done_callback(lambda _: function(self))

    def __await__(self) -> Generator[object, None, None]:
        if not self._future.done():
            loop = asyncio.get_running_loop()
            waiter: asyncio.Future[None] = loop.create_future()

            def wake(_: object) -> None:
                if not waiter.done():
                    waiter.set_result(None)

            self._future.add_done_callback(lambda _: loop.call_soon_threadsafe(wake, None))
            yield from waiter
        return self._future.result(0)

    # --- for the writer ---------------------------------------------------------------------

    def split(self, parts: int) -> None:
        """Divide one of its parts into `parts` parts."""
        self._parts += parts - 1

    def settle(self, error: NadiError | None) -> None:
        """Record that one part is stored, or has failed."""
        with _SETTLING:  # parts of a call that spanned batches may be settled in two threads
            self._parts -= 1
            self._error = self._error or error
            last = self._parts == 0
        if last:
            if self._error is None:
                self._future.set_result(None)
            else:
                self._future.set_exception(self._error)


def is_stored(ack: Ack) -> bool:
    """Whether it is known by now that the events are stored."""
    return ack.done() and ack._future.exception() is None


def _outcome(future: concurrent.futures.Future[None]) -> NadiError | None:
    error = future.exception(0)
    assert error is None or isinstance(error, NadiError)
    return error


class Batch:
    """entries: header, payload and routing key of each event in turn, so that one list operation adds an
    event whole, whatever interrupts the thread; a piece of many events stands there as an empty header, its
    bytes and itself. `number` is the writer's event number of its last event, once it was sent.
    """

    __slots__ = ("_more", "ack", "entries", "number", "size")

    @property
    def is_large(self) -> bool:
        """One event too large for an append; it goes through a transient segment."""
        return self.size > MAX_EVENT_BYTES + HEADER_BYTES and len(self.entries) == 3

    def __init__(self, ack: Ack | None = None) -> None:
        self.entries: list[bytes | memoryview | str | Piece | None] = []
        self.size = 0
        self.number = -1
        self.ack = ack or Ack()
        self._more = 0  # events of pieces beyond the first of each

    def __len__(self) -> int:
        return len(self.entries) // 3 + self._more

    def data(self) -> bytes:
        """The events as they lie in the segment."""
        entries: list[Any] = self.entries
        parts: list[Any] = [b""] * (len(entries) // 3 * 2)
        parts[0::2] = entries[0::3]
        parts[1::2] = entries[1::3]
        return b"".join(parts)

    def data_to_send(self) -> Parts:
        """Like `data`, but pieces aren't copied if there is nothing else."""
        entries: list[Any] = self.entries
        if self._more and all(isinstance(key, Piece) for key in entries[2::3]):
            return Parts(entries[1::3])
        return Parts([self.data()])

    def parts(self) -> Iterator[tuple[bytes, bytes, str | Piece | None]]:
        """(header, payload, routing key) of each event, (empty, bytes, piece) of each piece, in order."""
        entries: list[Any] = self.entries
        return zip(entries[0::3], entries[1::3], entries[2::3], strict=True)

    def keys_of(self, places: Sequence[int]) -> list[str | None]:
        """The routing keys of the events at these places, which ascend."""
        entries: list[Any] = self.entries
        if not self._more:
            keys = [entries[3 * place + 2] for place in places]
            return [key.key(0) if isinstance(key, Piece) else key for key in keys]
        keys, entry, first, count = [], -1, 0, 0
        for place in places:
            while place >= first + count:
                entry, first = entry + 1, first + count
                key = entries[3 * entry + 2]
                count = key.count if isinstance(key, Piece) else 1
            keys.append(key.key(place - first) if isinstance(key, Piece) else key)
        return keys

    def add(self, header: bytes, payload: bytes, key: str | None) -> None:
        self.entries += (header, payload, key)
        self.size += len(header) + len(payload)

    def add_piece(self, piece: Piece) -> None:
        self._more += piece.count - 1
        self.entries += (b"", piece.framed, piece)
        self.size += len(piece.framed)
