"""What one reader changes next, from the group's state and from what only this reader knows.

Every reader plans for itself, by the same rules, so nobody has to lead: who has more than its share
gives the rest away, and who has less takes what is free. Two that want the same segment meet in the
conditional update; the second plans again. Pure, as `state` is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from nadi.client.readergroup.state import NOBODY, GroupState, KeyRange, Update
from nadi.client.readergroup.updates import Acquire, Complete, CreateCheckpoint, Leave, Pass, Release, Report


@dataclass(frozen=True, slots=True)
class Completion:
    """A segment that was read to its end."""

    offset: int
    successors: tuple[KeyRange, ...]


@dataclass(frozen=True, slots=True)
class Facts:
    """What a reader knows at one moment.

    given: up to where each segment was handed to the application; done: up to where the application has
    finished with it; movable: segments of which nothing is in its hands; passed: positions at which it
    passed checkpoints, by number; silent: readers that have not reported for too long.
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
    """The updates, and the state with them; none if nothing is to be told."""
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
        if segment in facts.movable:
            add(Complete(reader, segment, end.offset, end.successors))
    for segment in [] if facts.is_leaving else list(_surplus(state, reader, facts)):
        add(Release(reader, segment, facts.given[segment]))
    if facts.is_leaving:
        add(Report(reader, facts.done))
        add(Leave(reader))
        return state, updates
    if not state.pending_for(reader):
        for segment in list(_wanted(state, reader)):
            add(Acquire(reader, segment))
    if updates or facts.is_report_due:
        add(Report(reader, facts.done))
    return state, updates


def shares(state: GroupState) -> dict[str, int]:
    """How many segments each reader should have; those that have most keep the odd ones, so that few move."""
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


def _surplus(state: GroupState, reader: str, facts: Facts) -> Iterator[str]:
    owned = state.owned_by(reader)
    more = len(owned) - shares(state).get(reader, 0)
    movable = [name for name in owned if name in facts.movable and name in facts.given]
    yield from movable[: max(0, more)]


def _wanted(state: GroupState, reader: str) -> Iterator[str]:
    free = sorted(state.unassigned)
    fewer = shares(state)[reader] - len(state.owned_by(reader))
    yield from free[: max(0, fewer)]
