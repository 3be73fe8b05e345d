"""Where events go: a stream, or one transaction of it; and what is known of those that were handed over."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nadi.cli.printing import warn
from nadi.errors import NadiError

if TYPE_CHECKING:
    from nadi.client import Ack, EventWriter, StreamManager, Transaction

_LAST_WORD_S = 5.0  # after Ctrl-C, or an error, for what is under way


@dataclass(frozen=True, slots=True)
class _Sent:
    ack: Ack
    events: int
    size_bytes: int


class Sink:
    """Takes lists of events, and counts those that are acknowledged."""

    def __init__(self, writer: EventWriter | Transaction) -> None:
        self._writer = writer
        self._under_way: deque[_Sent] = deque()  # as much as the writer lets wait for acknowledgement
        self.events = self.size_bytes = 0

    def write(self, events: list[bytes], keys: str | Sequence[str | None] | None) -> None:
        """Hand them over, waiting for room; raise what kept earlier ones from being stored."""
        if events:
            ack = self._writer.write_batch(events, keys)
            self._under_way.append(_Sent(ack, len(events), sum(map(len, events))))
        while self._under_way and self._under_way[0].ack.done():
            self._under_way[0].ack.result(0)
            self._count(self._under_way.popleft())

    def finish(self, timeout: float | None = None) -> None:
        """Return once all are stored."""
        self._writer.flush(timeout)
        self.write([], None)

    def end(self) -> int:
        """Count what is acknowledged by now; how many others there are, of which nobody knows."""
        from nadi.client.writing.ack import is_stored

        others = [one for one in self._under_way if not is_stored(one.ack)]
        for one in self._under_way:
            if is_stored(one.ack):
                self._count(one)
        self._under_way.clear()
        return sum(one.events for one in others)

    def _count(self, sent: _Sent) -> None:
        self.events += sent.events
        self.size_bytes += sent.size_bytes

    @property
    def told(self) -> str:
        return f"{self.events:,} event{'s' * (self.events != 1)}, {self.size_bytes:,} bytes"


@contextmanager
def sink(
    manager: StreamManager,
    scope: str,
    stream: str,
    *,
    is_transaction: bool = False,
    into: str | None = None,
    lease_ms: int = 0,
) -> Iterator[Sink]:
    """Opens one for the events of a command. However that ends, all that was handed over is waited for, and
    it is said on standard error what is acknowledged if that isn't all. into: the id of a transaction,
    which has a lease of `lease_ms` from then on."""
    if is_transaction:
        with manager.create_transaction_writer(scope, stream) as writer:
            txn = writer.begin_txn()
            found = Sink(txn)
            try:
                yield found
                found.finish()
                txn.commit(wait=True)
            except BaseException:
                became = "will be aborted when its lease ends"
                try:
                    with suppress(NadiError):
                        txn.abort(timeout=_LAST_WORD_S)
                        became = "was aborted"
                finally:  # also when interrupted again
                    warn(f"nothing was written: the transaction {became}")
                raise
        return
    with ExitStack() as within:
        if into is None:
            events = within.enter_context(manager.create_writer(scope, stream))
            found = Sink(events)
        else:
            events = None  # what is in a transaction needs no closing
            txns = manager.create_transaction_writer(scope, stream, lease_ms=lease_ms)
            found = Sink(within.enter_context(txns).get_txn(into))
        try:
            yield found
            found.finish()
        except BaseException:
            try:
                with suppress(NadiError):
                    found.finish(_LAST_WORD_S)
            finally:  # also when interrupted again
                unknown = found.end()
                more = f"; {unknown:,} more may be stored, or not" if unknown else ""
                warn(f"wrote {found.told}{more}")
                if events is not None:
                    with suppress(NadiError):
                        events.close(0)  # it was waited for
            raise
