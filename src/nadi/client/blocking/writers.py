"""The blocking faces of writers and transactions, of events and of values.

What is written joins a batch in the caller's thread; all else is the loop thread's work.
"""

from __future__ import annotations

from typing import Generic, Self, TypeVar
from uuid import UUID

from nadi.client import aio
from nadi.client.blocking.face import Closing, Face, described, opens, same, waits
from nadi.client.writing.transactions import OpenTransaction

T = TypeVar("T")
Own = TypeVar("Own", bound=OpenTransaction)


@described(aio.EventWriter)
class EventWriter(Closing[aio.EventWriter]):
    """See nadi.client.aio.EventWriter."""

    write_event = same(aio.EventWriter.write_event)
    write_batch = same(aio.EventWriter.write_batch)
    note_time = same(aio.EventWriter.note_time)
    flush = waits(aio.EventWriter.flush)
    close = waits(aio.EventWriter.close)


class _Open(Face[Own]):
    flush = waits(OpenTransaction.flush)
    commit = waits(OpenTransaction.commit)
    abort = waits(OpenTransaction.abort)
    ping = waits(OpenTransaction.ping)
    status = waits(OpenTransaction.status)
    __exit__ = waits(OpenTransaction.__aexit__)

    @property
    def txn_id(self) -> UUID:
        """The id by which `get_txn` finds the transaction, here or elsewhere."""
        return self._core.txn_id

    def __enter__(self) -> Self:
        return self


@described(aio.Transaction)
class Transaction(_Open[aio.Transaction]):
    """See nadi.client.aio.Transaction."""

    write_event = same(aio.Transaction.write_event)
    write_batch = same(aio.Transaction.write_batch)


@described(aio.TransactionalEventWriter)
class TransactionalEventWriter(Closing[aio.TransactionalEventWriter]):
    """See nadi.client.aio.TransactionalEventWriter."""

    begin_txn = opens(aio.TransactionalEventWriter.begin_txn, Transaction)
    get_txn = opens(aio.TransactionalEventWriter.get_txn, Transaction)
    commit_together = waits(aio.TransactionalEventWriter.commit_together)
    close = waits(aio.TransactionalEventWriter.close)


@described(aio.ValueWriter)
class ValueWriter(Closing[aio.ValueWriter[T]]):
    """See nadi.client.aio.ValueWriter."""

    write_event = same(aio.ValueWriter[T].write_event)
    write_batch = same(aio.ValueWriter[T].write_batch)
    note_time = same(aio.ValueWriter[T].note_time)
    flush = waits(aio.ValueWriter[T].flush)
    close = waits(aio.ValueWriter[T].close)


@described(aio.ValueTransaction)
class ValueTransaction(_Open[aio.ValueTransaction[T]]):
    """See nadi.client.aio.ValueTransaction."""

    write_event = same(aio.ValueTransaction[T].write_event)
    write_batch = same(aio.ValueTransaction[T].write_batch)


@described(aio.TransactionalValueWriter)
class TransactionalValueWriter(Closing[aio.TransactionalValueWriter[T]], Generic[T]):
    """See nadi.client.aio.TransactionalValueWriter."""

    begin_txn = opens(aio.TransactionalValueWriter[T].begin_txn, ValueTransaction)
    get_txn = opens(aio.TransactionalValueWriter[T].get_txn, ValueTransaction)
    commit_together = waits(aio.TransactionalValueWriter[T].commit_together)
    close = waits(aio.TransactionalValueWriter[T].close)
