"""Merges committed transactions into their stream, in the order in which they were committed.

A batch holds transactions of one epoch, the lowest epoch first. If the stream still has that epoch's ranges,
each active segment takes the transactions' segments of its number in one command. An absent source was
merged before, so a batch can be merged again after a crash. If the stream was scaled meanwhile, the
transactions get two epochs of their own ("rolling transaction"): first their old ranges again, sealed as
soon as everything is merged, then the current ranges again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nadi.controller.engine.steps import seal_and_measure, switch
from nadi.controller.engine.workflows import Workflows
from nadi.controller.state.history import copy_id
from nadi.controller.state.metadata import StreamName
from nadi.controller.state.records import EpochSegment, RollWork, Transaction
from nadi.controller.state.segments import together
from nadi.limits import TXN_COMMIT_BATCH
from nadi.naming import transaction_segment_name


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


async def merge(
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


async def roll(flow: Workflows, name: StreamName, work: RollWork) -> None:
    """Give the stream the two epochs of a rolling transaction, unless it has them; the first gets the batch."""
    stream = (await flow.metadata.stream(name)).value
    batch, merged, restored = list(work.txn_ids), work.merge, work.restore
    if stream.epoch >= restored.epoch:
        return

    async def merge_into(target: EpochSegment) -> None:
        segment = name.segment(target.id)
        await flow.segments.create_segment(segment, stream.config, fixed=True)
        sources = _sources(name, target, work.txn_epoch, batch)
        await flow.segments.merge(segment, sources, sealed_is_done=True)
        await flow.segments.seal(segment)

    await together(merge_into(target) for target in merged.added)
    await together(flow.segments.create_segment(name.segment(s.id), stream.config) for s in restored.added)
    await flow.metadata.publish(name, [merged, restored])
    await seal_and_measure(flow, name, merged.removed, f"{merged.epoch}")
    await seal_and_measure(flow, name, restored.removed, f"{restored.epoch}")
    await switch(flow, name, restored)
