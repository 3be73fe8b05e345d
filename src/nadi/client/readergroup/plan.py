"""What one reader changes next, given the group's state and what only this reader knows.

Every reader plans for itself, by the same rules, so nobody has to lead: a reader with more than its share
gives the rest away, and one with less takes what is free. If two want the same segment, the conditional
update decides, and the second plans again. Pure, like `state`.

`Watch` sees what only time shows: which readers are silent, and when a checkpoint is due. Each reader measures with its
own monotonic clock how long a number in the state has not changed, so no two clocks need to agree. Times come in as
arguments.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from nadi.client.readergroup.state import GroupState, Update
from nadi.client.readergroup.updates import Acquire, Complete, CreateCheckpoint, Leave, Pass, PositionReport, Release
from nadi.client.reading.read_ahead import Completion
from nadi.model.readergroup import NOBODY


class Watch:
    def __init__(self, reader: str) -> None:
        self._reader = reader
        self._seen: dict[str, tuple[tuple[str, int], float]] = {}  # a reader's token and beat, and since when
        self._checkpoints: tuple[int, float] = (-1, 0.0)
        self._looked_at = 0.0

    def look(self, state: GroupState, now: float) -> None:
        """Note what the state says at `now` seconds."""
        patience = state.timing.dead_after_ms / 1000
        was_away = now - self._looked_at > patience / 2  # then it isn't known who reported meanwhile
        before = {} if was_away else self._seen
        self._looked_at = now
        self._seen = {}
        for name, held in state.readers.items():
            mark = (held.token, held.beat)
            known = before.get(name)
            self._seen[name] = known if known is not None and known[0] == mark else (mark, now)
        if self._checkpoints[0] != state.checkpoints_made:
            self._checkpoints = (state.checkpoints_made, now)

    def silent(self, state: GroupState) -> list[str]:
        """Readers that have not reported for too long."""
        patience = state.timing.dead_after_ms / 1000
        now = self._looked_at
        return [name for name, (_, since) in self._seen.items() if name != self._reader and now - since > patience]

    def due_checkpoint(self, state: GroupState) -> str | None:
        """The name of a checkpoint to make now, or None; the first reader by name makes them for all."""
        interval = state.timing.checkpoint_interval_ms / 1000
        if not interval or self._reader != min(state.readers) or any(one.pending for one in state.checkpoints):
            return None
        number, since = self._checkpoints
        return f"interval-{number + 1}" if self._looked_at - since >= interval else None


@dataclass(frozen=True, slots=True)
class Facts:
    """What a reader knows when it plans.

    given: up to where each segment was handed to the application; done: up to where the application has
    finished with it; movable: segments of which the application holds nothing; passed: positions at which
    this reader passed checkpoints, by number; silent: readers that have not reported for too long.
    """

    given: Mapping[str, int] = field(default_factory=dict)
    done: Mapping[str, int] = field(default_factory=dict)
    movable: Collection[str] = ()
    completed: Mapping[str, Completion] = field(default_factory=dict)
    passed: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    silent: Collection[str] = ()
    new_checkpoint: str | None = None
    is_report_due: bool = False
    is_leaving: bool = False


def plan(state: GroupState, reader: str, facts: Facts) -> tuple[GroupState, list[Update]]:
    """Return the state after this reader's updates, and the updates; none if there is nothing to report."""
    updates: list[Update] = []

    def add(update: Update) -> None:
        nonlocal state
        state = state.apply(update)
        updates.append(update)

    for other in facts.silent:
        add(Leave(other))
    if facts.new_checkpoint is not None and state.checkpoint(facts.new_checkpoint) is None:
        add(CreateCheckpoint(facts.new_checkpoint))
    for checkpoint in state.pending_for(reader):
        positions = facts.given if checkpoint.is_silent else facts.passed.get(checkpoint.number)
        if positions is not None:
            add(Pass(reader, checkpoint.number, positions))
    for segment, end in facts.completed.items():
        if segment in facts.movable and segment not in state.outputs:  # its successors' output comes after its own
            add(Complete(reader, segment, end.offset, end.successors))
    if facts.is_leaving:
        add(Leave(reader, facts.done))
        return state, updates
    owned = state.owned_by(reader)
    more = max(0, len(owned) - shares(state).get(reader, 0))
    for segment in [name for name in owned if name in facts.movable and name in facts.given][:more]:
        add(Release(reader, segment, facts.given[segment]))
    if not state.pending_for(reader):
        fewer = max(0, shares(state)[reader] - len(state.owned_by(reader)))
        for segment in sorted(state.unassigned)[:fewer]:
            add(Acquire(reader, segment))
    if updates or facts.is_report_due:
        add(PositionReport(reader, facts.done))
    return state, updates


def shares(state: GroupState) -> dict[str, int]:
    """Return how many segments each reader should have; those with the most keep the odd ones, so that few move."""
    if not state.readers:
        return {}
    counts = dict.fromkeys(state.readers, 0)
    active = 0
    for segment in state.segments.values():
        if segment.is_active:
            active += 1
            if segment.owner != NOBODY:
                counts[segment.owner] += 1
    least, odd = divmod(active, len(counts))
    ordered = sorted(counts, key=lambda name: (-counts[name], name))
    return {name: least + (rank < odd) for rank, name in enumerate(ordered)}
