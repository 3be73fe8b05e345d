"""Transactions of a stream that are committed together: one change of their table makes all COMMITTING, or none.

They are merged in one batch, each segment's in one command, unless the stream was scaled between their beginnings: then
those of each epoch are. The cut behind which they lie is kept with their outcomes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from nadi.backoff import Tries
from nadi.controller.state.metadata import StreamName
from nadi.controller.state.records import TxnState
from nadi.controller.transactions.decisions import Transactions, txn_text
from nadi.errors import ConditionFailedError, TransactionFailedError, UnavailableError


class Commit(NamedTuple):
    """is_merged: readers can see all. cut: behind all events, if that is known."""

    is_merged: bool
    cut: dict[int, int] | None


async def commit_together(
    transactions: Transactions, name: StreamName, txn_ids: Sequence[int], writer_id: str, commit_time: int | None
) -> None:
    """Decide to commit all; those committed already stay so. TransactionFailedError if one has ended otherwise."""
    await transactions.to_its_end(_commit_together(transactions, name, txn_ids, writer_id, commit_time))


async def _commit_together(
    transactions: Transactions, name: StreamName, txn_ids: Sequence[int], writer_id: str, commit_time: int | None
) -> None:
    texts = list(dict.fromkeys(map(txn_text, txn_ids)))
    tries = Tries(f"{len(texts)} transactions of {name}")
    while True:
        states = {text: await transactions.state(name, int(text, 16)) for text in texts}
        lost = [text for text, state in states.items() if state in (TxnState.ABORTING, TxnState.ABORTED)]
        if lost:
            raise TransactionFailedError(f"transaction {lost[0]} was aborted or has timed out")
        still_open = [text for text, state in states.items() if state is TxnState.OPEN]
        if await _decided(transactions, name, still_open, writer_id, commit_time):
            return
        await _refresh(transactions, name, still_open)
        await tries.lost()


async def _decided(
    transactions: Transactions, name: StreamName, texts: Sequence[str], writer_id: str, commit_time: int | None
) -> bool:
    """False if one of them was changed meanwhile, and so none is now."""
    first = transactions.take_commit_numbers(len(texts))
    changes = []
    for number, text in enumerate(texts, first):
        held = transactions.leases.find(name, text)
        if held is None:
            return False
        wanted = replace(
            held.record.value,
            state=TxnState.COMMITTING,
            writer_id=writer_id,
            commit_time=commit_time,
            commit_number=number,
            group=first,
        )
        changes.append((f"{name.key}/{text}", wanted, held.record.version))
    try:
        stored = await transactions.table.put_all(changes) if changes else []
    except ConditionFailedError:
        return False
    except UnavailableError:
        transactions.learn(name, texts)
        raise
    for text, record in zip(texts, stored, strict=True):
        transactions.note(name, text, record)
    return True


async def _refresh(transactions: Transactions, name: StreamName, texts: Sequence[str]) -> None:
    """Take note of what another call has made of them."""
    found = await transactions.table.get_all([f"{name.key}/{text}" for text in texts])
    for text, record in zip(texts, found, strict=True):
        if record is None:
            transactions.leases.end(name, [text])
        elif transactions.leases.find(name, text) is not None:
            transactions.note(name, text, record)


async def find_commit(transactions: Transactions, name: StreamName, txn_ids: Sequence[int]) -> Commit:
    """Whether all are merged, and behind which cut; TransactionFailedError if one isn't committed."""
    cuts = []
    for txn_id in txn_ids:
        state = await transactions.state(name, txn_id)
        if state is TxnState.COMMITTING:
            return Commit(False, None)
        if state is not TxnState.COMMITTED:
            raise TransactionFailedError(f"transaction {txn_text(txn_id)} is {state.name}, and not committed")
        found = await transactions.finished.find(name, txn_text(txn_id))
        if found is not None and found.cut is not None:
            cuts.append(found.cut)
    # what was merged later has later epochs, or the same and later offsets
    return Commit(True, max(cuts, key=lambda cut: (max(cut) >> 32, sum(cut.values())), default=None))
