"""What is to be rebuilt, and rebuilding it: nothing intact is touched.

`look` only reads, so it can run on a stopped folder; it says what will be done. `carry_out` can be interrupted at any
point and run again: each stream, table and group exists only once its record does, which is written last. Something
that can't be rebuilt doesn't stop the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

from nadi.controller.anew import records, streams, structures
from nadi.controller.anew.found import ByOwner, Found, Segments, by_owner, take_odd
from nadi.controller.anew.records import Known
from nadi.controller.anew.streams import Remains, StreamAnew
from nadi.controller.anew.structures import GroupAnew, TableAnew
from nadi.controller.engine.finished import Finished
from nadi.controller.engine.workflows import Workflows
from nadi.controller.state import histories
from nadi.controller.state.history import History
from nadi.controller.state.metadata import GroupName, Metadata, StreamName, TableName
from nadi.controller.state.records import (
    CreateGroupWork,
    HistoryRecord,
    Number,
    Scope,
    SealedSizes,
    StreamState,
    TxnState,
)
from nadi.controller.state.segments import together
from nadi.controller.state.store import ABSENT, ANY_VERSION
from nadi.controller.workflows import groups, tags
from nadi.errors import NadiError, StorageFullError, UnavailableError
from nadi.naming import (
    CLIENT_TABLES,
    INTERNAL_SCOPE,
    MARK_PREFIX,
    READER_GROUP_PREFIX,
    TABLE_SUFFIX,
    segment_epoch,
)

log = logging.getLogger(__name__)

_COUNTER = "transaction"  # of ids; see nadi.controller.transactions.decisions
_NUMBER_BITS = 96  # of a transaction's id, below its epoch
_FAR = 1 << 32  # behind all ids that may have been given, where the counter is lost
_EPOCHS_AT_ONCE = 100  # records of a history put together
_BY_CLIENTS = {name + TABLE_SUFFIX for name in CLIENT_TABLES}
_ON_EPOCHS = ("scale", "roll", "truncate")  # work that was begun on epochs which are no more


@dataclass(slots=True)
class Plan:
    """All that is to be done. counter: the next transaction's number, if it must change. told: messages about what
    can't be rebuilt. is_partial: for some streams it isn't known what to do, which is an error of ours."""

    scopes: list[str] = field(default_factory=list)
    streams: list[StreamAnew] = field(default_factory=list)
    tables: list[TableAnew] = field(default_factory=list)
    groups: list[GroupAnew] = field(default_factory=list)
    tagged: list[tuple[StreamName, tuple[str, ...]]] = field(default_factory=list)
    counter: int | None = None
    told: list[str] = field(default_factory=list)
    is_partial: bool = False

    @property
    def is_empty(self) -> bool:
        return not (
            self.is_partial or self.scopes or self.streams or self.tables or self.groups or self.tagged or self.counter
        )

    def lines(self) -> list[str]:
        """What a person should know, line by line."""
        lines = [f"scope {scope}: rebuilt" for scope in self.scopes]
        lines += [stream.told for stream in self.streams if stream.told]
        lines += [table.told for table in self.tables]
        return [*lines, *(group.told for group in self.groups), *self.told]


async def look(flow: Workflows, found: Iterable[Found]) -> Plan:
    """Find what exists but is missing from the records; change nothing."""
    metadata, now_ms = flow.metadata, flow.clock.now_ms()
    segments = list(found)
    owners = by_owner(segments)
    prefix = metadata.streams("").name
    with_table = {one.name.removeprefix(prefix) for one in segments if one.name.startswith(prefix)} - {INTERNAL_SCOPE}
    scopes = with_table | {name.scope for name in (*owners.streams, *owners.tables)}
    known = await records.read(metadata, scopes)
    plan = Plan()
    await _look_at_streams(plan, metadata, owners, known, now_ms)
    await _look_at_tables(plan, flow, owners, known, now_ms)
    await _look_at_groups(plan, metadata, owners, known, now_ms)
    for name, held in known.streams.items():
        if lost := await tags.unlisted(flow, name, held.value.config.tags):
            plan.tagged.append((name, lost))
    used = {name.scope for name in known.streams} | {name.scope for name in known.tables}
    used |= {stream.name.scope for stream in plan.streams} | {table.name.scope for table in plan.tables}
    used |= {group.name.scope for group in plan.groups}
    plan.scopes = sorted((used | with_table) - known.scopes - _deleted(known))
    numbers = [
        int(text, 16) & ((1 << _NUMBER_BITS) - 1) for some in owners.streams.values() for text in some.transactions
    ]
    counter = known.numbers.get(_COUNTER)
    if counter is None and (plan.streams or numbers):
        plan.counter = max(numbers, default=0) + _FAR
    elif counter is not None and max(numbers, default=0) >= counter:
        plan.counter = max(numbers) + 1
    return plan


def _deleted(known: Known) -> set[str]:
    """Scopes whose deletion will resume."""
    return {name.scope for name, kinds in known.work.items() if "scope" in kinds}


async def _look_at_streams(plan: Plan, metadata: Metadata, owners: ByOwner, known: Known, now_ms: int) -> None:
    deleted = _deleted(known)
    for name in sorted({*owners.streams, *known.streams}):
        held = known.streams.get(name)
        history, _ = await records.history_of(metadata, name)
        work = known.work.get(name, set()) | ({"delete"} if name.scope in deleted else set())
        if name.stream.startswith(MARK_PREFIX):  # which is made and deleted with its stream
            work |= known.work.get(StreamName(name.scope, name.stream.removeprefix(MARK_PREFIX)), set())
        segments = owners.streams.get(name, Segments())
        last = known.last_number(name)
        odd = take_odd(segments, last, history.newest if history is not None else 0)
        plan.told += [f"segment {one}: no stream can have it: it stays unused" for one in odd]
        remains = Remains(
            name,
            held.value if held is not None else None,
            history,
            segments,
            work,
            last,
            known.transactions.get(name, {}),
        )
        try:
            made = streams.made_whole(remains, now_ms)
        except Exception as error:  # the others are made anew all the same
            log.warning("stream %s", name, exc_info=error)
            plan.told.append(f"stream {name}: it can't be rebuilt: {error!r}")
            plan.is_partial = True
            continue
        if made is not None:
            plan.streams.append(made)
        elif held is None and segments.by_id and not work:
            plan.told.append(f"stream {name}: it was deleted, and its segments are there again: they stay unused")
    made_anew = {one.name for one in plan.streams}
    for name in sorted({*known.streams, *made_anew}):
        has_own = name.stream.startswith("_") or name.mark in known.streams or name.mark in made_anew
        if not has_own and not known.work.get(name, set()) & {"create", "delete"}:
            plan.streams.append(streams.mark_stream(name.mark, known.last_number(name.mark) + 1, now_ms))


async def _look_at_tables(plan: Plan, flow: Workflows, owners: ByOwner, known: Known, now_ms: int) -> None:
    for owner, segments in sorted(owners.tables.items()):
        name = TableName.of(owner)
        odd = take_odd(segments, known.last_number(owner))
        plan.told += [f"segment {one}: no table can have it: it stays unused" for one in odd]
        if owner.stream in _BY_CLIENTS or name.table.startswith(READER_GROUP_PREFIX) or not segments.by_id:
            continue
        if name in known.tables or known.work.get(owner) or not structures.looks_made(segments):
            continue
        keys = {i: await flow.segments.some_keys(one.name) for i, one in segments.by_id.items()}
        made = structures.table_anew(name, segments, keys, known.last_number(owner), now_ms)
        if made is not None:
            plan.tables.append(made)
        else:
            plan.told.append(f"key-value table {name}: how its keys lie in its segments is lost: they stay unused")


async def _look_at_groups(plan: Plan, metadata: Metadata, owners: ByOwner, known: Known, now_ms: int) -> None:
    made = {one.name for one in plan.streams}
    names = {GroupName.of(name) for name in (*known.streams, *made) if name.stream.startswith(READER_GROUP_PREFIX)}
    with_state = {owner for owner in owners.tables if owner.stream.startswith(READER_GROUP_PREFIX)}
    names |= {GroupName.of(StreamName(owner.scope, owner.stream.removesuffix(TABLE_SUFFIX))) for owner in with_state}
    for name in sorted(names - known.groups):
        if known.work.get(name.stream):
            continue
        group = None
        if StreamName(name.scope, name.stream.stream + TABLE_SUFFIX) in with_state:
            group = await structures.group_of(metadata.group_state(name), now_ms)
        if group is not None:
            plan.groups.append(GroupAnew(name, group))
        else:
            plan.told.append(f"reader group {name}: its configuration is lost, or its state: create it again")


# --- making it ---------------------------------------------------------------------------------------


async def carry_out(flow: Workflows, plan: Plan) -> None:
    """Carry out the plan as far as possible.

    Raises:
        UnavailableError, StorageFullError: nothing more can be done now, or some of it can't; each failure is logged.
    """
    metadata = flow.metadata
    for table in (metadata.scopes, metadata.work, metadata.transactions, metadata.numbers):
        await table.create()
    if plan.counter is not None:
        await metadata.numbers.put(_COUNTER, Number(plan.counter), ANY_VERSION)
    for scope in plan.scopes:
        await metadata.streams(scope).create()
        await metadata.scopes.put(scope, Scope(flow.clock.now_ms()), ANY_VERSION)
    failed = ["some streams, of which it isn't known how"] if plan.is_partial else []
    for what, make in _each(flow, plan):
        try:
            await make()
        except (UnavailableError, StorageFullError):
            raise
        except Exception as error:
            unforeseen = error if not isinstance(error, NadiError) else None
            log.error("%s can't be rebuilt: %s", what, error, exc_info=unforeseen)
            failed.append(what)
    if failed:
        raise UnavailableError(f"these can't be rebuilt: {', '.join(failed)}")


def _each(flow: Workflows, plan: Plan) -> Iterator[tuple[str, Callable[[], Awaitable[None]]]]:
    """Each thing's name and how to make it, in an order that works."""
    for stream in plan.streams:
        yield f"stream {stream.name}", partial(_make_stream, flow, stream)
    for name, lost in plan.tagged:
        yield f"the tags of stream {name}", partial(tags.change, flow, name, (), lost)
    for table in plan.tables:
        yield f"key-value table {table.name}", partial(_make_table, flow, table)
    for group in plan.groups:
        yield f"reader group {group.name}", partial(_make_group, flow, group)


async def _make_table(flow: Workflows, anew: TableAnew) -> None:
    config, owner = anew.table.config, anew.name.stream
    key_bytes = config.primary_key_bytes + config.secondary_key_bytes
    await together(flow.segments.create_table(owner.segment(i), key_bytes, 0) for i in anew.create)
    await flow.metadata.tables(anew.name.scope).put(anew.name.table, anew.table, ANY_VERSION)


async def _make_group(flow: Workflows, anew: GroupAnew) -> None:
    (first,) = await flow.metadata.first_numbers([anew.name.stream])
    await groups.create_steps(flow, anew.name.stream, CreateGroupWork(anew.group, first))


async def _make_stream(flow: Workflows, anew: StreamAnew) -> None:
    name, segments, metadata = anew.name, flow.segments, flow.metadata
    await together(segments.create_segment(name.segment(i), anew.stream.config) for i in anew.create)
    for target, sources in anew.merge.items():
        await segments.merge(name.segment(target), sources)
    await together(segments.seal(name.segment(i)) for i in anew.seal)
    if not anew.is_changed:
        return
    if anew.committed or anew.aborted:
        await _end_transactions(flow, anew)
    await metadata.work.remove([f"{name.key}/{kind}" for kind in _ON_EPOCHS] if anew.is_made_up else [])
    await metadata.streams(name.scope).create()
    sizes = {i: size for i, size in anew.history.sizes.items() if i in anew.history.sealed_in}
    if anew.stream.state is StreamState.SEALED:
        sizes = anew.history.sizes
    if anew.history.newest or sizes:
        await _put_history(metadata, name, anew.history, sizes)
    metadata.forget_history(name)
    held = await metadata.find_stream(name)
    await metadata.put_stream(name, anew.stream, ABSENT if held is None else held.version)


async def _put_history(metadata: Metadata, name: StreamName, history: History, sizes: dict[int, int]) -> None:
    table = metadata.epochs(name)
    _, former = await records.history_of(metadata, name)
    await table.create()
    wanted: list[tuple[str, HistoryRecord, int]] = [
        (f"epoch/{change.epoch}", change, ANY_VERSION) for change in history.changes
    ]
    if history.first:
        wanted[0] = (histories.BASE, histories.base_of(history, cleared=history.first), ANY_VERSION)
    by_epoch: dict[int, dict[int, int]] = {}
    for segment, size in sizes.items():
        by_epoch.setdefault(segment_epoch(segment), {})[segment] = size
    wanted += [(f"{histories.ANEW_SIZES}{epoch}", SealedSizes(some), ANY_VERSION) for epoch, some in by_epoch.items()]
    await table.remove(former - {key for key, _, _ in wanted})
    for begin in range(0, len(wanted), _EPOCHS_AT_ONCE):
        await table.put_all(wanted[begin : begin + _EPOCHS_AT_ONCE])


async def _end_transactions(flow: Workflows, anew: StreamAnew) -> None:
    """Those of epochs that are no more: what was to be committed is merged by now, the others can't be."""
    finished = Finished(flow.metadata, flow.clock)
    for texts, state in ((anew.committed, TxnState.COMMITTED), (anew.aborted, TxnState.ABORTED)):
        if texts:
            await finished.add(anew.name, anew.stream, list(texts), state)
    keys = [f"{anew.name.key}/{text}" for text in (*anew.committed, *anew.aborted)]
    await flow.metadata.transactions.remove(keys)
    await together(flow.segments.delete(segment) for some in anew.aborted.values() for segment in some)
