"""Merge committed transactions into the stream, in the order in which they were committed.

A batch holds transactions of one epoch, the lowest epoch first. If the stream still has that epoch's ranges,
each active segment takes the transactions' segments of its number in one command. An absent source was
merged before, so a batch can be merged again after a crash. If the stream was scaled meanwhile, the
transactions get two epochs of their own ("rolling transaction"): first their old ranges again, sealed as
soon as everything is merged, then the current ranges again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nadi.controller.engine.workflows import Workflows
from nadi.controller.state.history import copy_id
from nadi.controller.state.metadata import StreamName
from nadi.controller.state.records import EpochSegment, RollWork, StreamState, Transaction, TxnState
from nadi.controller.state.segments import together
from nadi.controller.time.marks import note_commits
from nadi.controller.transactions.decisions import Transactions
from nadi.controller.workflows.scale import seal_and_measure, switch
from nadi.limits import TXN_COMMIT_BATCH
from nadi.naming import transaction_segment_name


async def commit_pass(flow: Workflows, transactions: Transactions, name: StreamName) -> None:
    """Merge all committing transactions of a stream. The caller holds its lock."""
    while committing := transactions.live(name, TxnState.COMMITTING):
        epoch = min(txn.epoch for txn in committing.values())
        batch = next_batch({text: txn for text, txn in committing.items() if txn.epoch == epoch})
        stream = (await flow.metadata.stream(name)).value
        assert stream.state is not StreamState.SEALED, "sealing waits for committing transactions"
        if stream.reference == epoch:
            positions = await _merge(flow, name, stream.segments, epoch, batch)
            await note_commits(flow, name, {text: committing[text] for text in batch}, positions)
            cuts = {text: positions[last] for text, last in last_of_groups(committing, batch).items()}
            await transactions.complete(name, batch, TxnState.COMMITTED, cuts)
            continue
        history = await flow.metadata.history(name)
        merge, restore = history.plan_roll(stream.epoch, epoch, flow.clock.now_ms())
        await flow.within(name, RollWork(epoch, tuple(batch), merge, restore))


def next_batch(committing: Mapping[str, Transaction]) -> list[str]:
    """The next to be merged at once, in the order of their commits; those committed together stay together."""
    batch = sorted(committing, key=lambda text: committing[text].commit_number)
    end = min(TXN_COMMIT_BATCH, len(batch))
    while end < len(batch) and committing[batch[end]].group == committing[batch[end - 1]].group != 0:
        end += 1
    return batch[:end]


def last_of_groups(committing: Mapping[str, Transaction], batch: Sequence[str]) -> dict[str, str]:
    """For each of the batch that was committed together with others, the last of these in the batch."""
    last = {committing[text].group: text for text in batch}
    return {text: last[committing[text].group] for text in batch if committing[text].group}


async def _merge(
    flow: Workflows, name: StreamName, targets: Sequence[EpochSegment], epoch: int, batch: list[str]
) -> dict[str, dict[int, int]]:
    """Merge the batch into the targets; return for each transaction where it ends in each target."""
    positions: dict[str, dict[int, int]] = {text: {} for text in batch}

    async def merge_into(target: EpochSegment) -> None:
        ends = await flow.segments.merge(name.segment(target.id), _sources(name, target, epoch, batch))
        for text, end in zip(batch, ends, strict=True):
            positions[text][target.id] = end

    await together(merge_into(target) for target in targets)
    return positions


def _sources(name: StreamName, target: EpochSegment, epoch: int, batch: list[str]) -> list[str]:
    parent = name.segment(copy_id(target.id, epoch))
    return [transaction_segment_name(parent, int(text, 16)) for text in batch]


async def roll_steps(flow: Workflows, transactions: Transactions, name: StreamName, work: RollWork) -> None:
    stream = (await flow.metadata.stream(name)).value
    batch = list(work.txn_ids)
    merge, restore = work.merge, work.restore
    if stream.epoch < restore.epoch:

        async def merge_into(target: EpochSegment) -> None:
            segment = name.segment(target.id)
            await flow.segments.create_segment(segment, stream.config, fixed=True)
            sources = _sources(name, target, work.txn_epoch, batch)
            await flow.segments.merge(segment, sources, sealed_is_done=True)
            await flow.segments.seal(segment)

        await together(merge_into(target) for target in merge.added)
        await together(flow.segments.create_segment(name.segment(s.id), stream.config) for s in restore.added)
        await flow.metadata.publish(name, [merge, restore])
        await seal_and_measure(flow, name, merge.removed, f"{merge.epoch}")
        await seal_and_measure(flow, name, restore.removed, f"{restore.epoch}")
        await switch(flow, name, restore)
    committing = {text: txn for text, txn in transactions.live(name, TxnState.COMMITTING).items() if text in set(batch)}
    grouped = last_of_groups(committing, [text for text in batch if text in committing])
    ends: dict[int, int] = {}
    if grouped or any(txn.commit_time is not None for txn in committing.values()):
        ends = {s.id: await flow.segments.length(name.segment(s.id)) for s in merge.added}
    # all events of the batch lie before the ends of the merge's segments
    await note_commits(flow, name, committing, dict.fromkeys(committing, ends))
    await transactions.complete(name, batch, TxnState.COMMITTED, dict.fromkeys(grouped, ends))
