"""Planning of a reader's next updates, from the group's state and the reader's local facts.

Every reader plans independently by the same rules, without a leader: a reader with more than its share releases
segments, and a reader with less acquires free ones. If two want the same segment, the conditional update decides, and
the loser plans again. Pure, like `state`.

`Watch` detects silent readers and due checkpoints. Each reader measures with its monotonic clock how long a number in
the state hasn't changed, so clocks need not agree. Times are passed as arguments.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from nadi.client.readergroup.state import GroupState, Update
from nadi.client.readergroup.updates import Acquire, Complete, CreateCheckpoint, Leave, Pass, PositionReport, Release
from nadi.client.reading.read_ahead import Completion
from nadi.model.readergroup import UNASSIGNED


class Watch:
    """One reader's observations of the group over time."""

    def __init__(self, reader: str) -> None:
        self._reader = reader
        self._seen: dict[str, tuple[tuple[str, int], float]] = {}  # a reader's token and beat, and since when
        self._checkpoints: tuple[int, float] = (-1, 0.0)
        self._observed_at = 0.0

    def observe(self, state: GroupState, now: float) -> None:
        """Record the state at `now` seconds."""
        patience = state.timing.dead_after_ms / 1000
        was_away = now - self._observed_at > patience / 2  # heartbeats in between were missed
        before = {} if was_away else self._seen
        self._observed_at = now
        self._seen = {}
        for name, member in state.readers.items():
            mark = (member.token, member.beat)
            seen = before.get(name)
            self._seen[name] = seen if seen is not None and seen[0] == mark else (mark, now)
        if self._checkpoints[0] != state.checkpoints_made:
            self._checkpoints = (state.checkpoints_made, now)

    def silent(self, state: GroupState) -> list[str]:
        """Return the readers without a heartbeat for dead_after_ms."""
        patience = state.timing.dead_after_ms / 1000
        now = self._observed_at
        return [name for name, (_, since) in self._seen.items() if name != self._reader and now - since > patience]

    def due_checkpoint(self, state: GroupState) -> str | None:
        """Return the name of the checkpoint due now, or None; the first reader by name creates them for all."""
        interval = state.timing.checkpoint_interval_ms / 1000
        if (
            not interval
            or self._reader != min(state.readers)
            or any(checkpoint.pending for checkpoint in state.checkpoints)
        ):
            return None
        number, since = self._checkpoints
        return f"interval-{number + 1}" if self._observed_at - since >= interval else None


@dataclass(frozen=True, slots=True)
class Facts:
    """A reader's local facts for planning.

    returned: the end of the events that the application got, by segment; done: the end of the events it has finished;
    movable: segments not in use by the application; passed: positions at which this reader passed checkpoints, by
    number; silent: readers without a heartbeat for dead_after_ms.
    """

    returned: Mapping[str, int] = field(default_factory=dict)
    done: Mapping[str, int] = field(default_factory=dict)
    movable: Collection[str] = ()
    completed: Mapping[str, Completion] = field(default_factory=dict)
    passed: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    silent: Collection[str] = ()
    new_checkpoint: str | None = None
    is_report_due: bool = False
    is_leaving: bool = False


def plan(state: GroupState, reader: str, facts: Facts) -> tuple[GroupState, list[Update]]:
    """Return the state after this reader's next updates, and the updates, if any."""
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
        positions = facts.returned if checkpoint.is_silent else facts.passed.get(checkpoint.number)
        if positions is not None:
            add(Pass(reader, checkpoint.number, positions))
    for segment, end in facts.completed.items():
        if segment in facts.movable and segment not in state.outputs:  # its output precedes its successors' output
            add(Complete(reader, segment, end.offset, end.successors))
    if facts.is_leaving:
        add(Leave(reader, facts.done))
        return state, updates
    owned = state.owned_by(reader)
    surplus = max(0, len(owned) - shares(state).get(reader, 0))
    for segment in [name for name in owned if name in facts.movable and name in facts.returned][:surplus]:
        add(Release(reader, segment, facts.returned[segment]))
    if not state.pending_for(reader):
        deficit = max(0, shares(state)[reader] - len(state.owned_by(reader)))
        for segment in sorted(state.unassigned)[:deficit]:
            add(Acquire(reader, segment))
    if updates or facts.is_report_due:
        add(PositionReport(reader, facts.done))
    return state, updates


def shares(state: GroupState) -> dict[str, int]:
    """Return each reader's target number of segments; readers with the most get the remainder, so that few move."""
    if not state.readers:
        return {}
    counts = dict.fromkeys(state.readers, 0)
    active = 0
    for segment in state.segments.values():
        if segment.is_active:
            active += 1
            if segment.owner != UNASSIGNED:
                counts[segment.owner] += 1
    least, odd = divmod(active, len(counts))
    ordered = sorted(counts, key=lambda name: (-counts[name], name))
    return {name: least + (rank < odd) for rank, name in enumerate(ordered)}
