"""Histories made up for segments whose history is lost: whatever it was, each key's events come in order, and once."""

from __future__ import annotations

import asyncio
import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nadi.controller.anew.chain import chain, head_of
from nadi.controller.anew.found import Found, Segments
from nadi.controller.anew.plan import Plan, carry_out
from nadi.controller.anew.streams import Remains, StreamAnew, made_whole, mark_stream
from nadi.controller.anew.structures import GroupAnew, TableAnew, table_anew
from nadi.controller.engine.tasks import Tasks
from nadi.controller.engine.workflows import Workflows
from nadi.controller.state.history import History, first_epoch
from nadi.controller.state.metadata import GroupName, Metadata, StreamName, TableName
from nadi.controller.state.records import (
    Config,
    GroupConfig,
    GroupRetention,
    ReaderGroup,
    Stream,
    StreamState,
    Transaction,
    TxnState,
)
from nadi.controller.state.segments import Segments as SegmentCommands
from nadi.controller.state.store import Store
from nadi.controller.workflows import tags
from nadi.errors import InvalidArgumentError, UnavailableError
from nadi.model.frontier import Frontier
from nadi.model.keyspace import primary_key_position
from nadi.model.segments import SegmentRange as Piece
from nadi.model.segments import share_keys, tiles
from nadi.naming import segment_epoch, segment_id
from nadi.wire.commands import Command
from tests.controller.fake_store import FakeStore
from tests.controller.support import FakeClock
from tests.controller.test_history import histories, random_history

NAME = StreamName("home", "meters")
NOW = 1_000_000


def found_of(history: History, *, first: int = 0, sealed: bool = True, length: int = 100) -> dict[int, Found]:
    """Segments of a stream, as the store has them, from an epoch on."""
    active = {segment.id for segment in history.epoch(history.newest)}
    return {
        i: Found(NAME.segment(i), length=length, is_sealed=sealed and i not in active, created_ms=segment_epoch(i) + 1)
        for i in history.segments
        if history.sealed_in.get(i, 1 << 62) > first
    }


def remains_of(found: dict[int, Found], **more: object) -> Remains:
    return Remains(NAME, more.pop("stream", None), more.pop("history", None), Segments(found), **more)  # type: ignore[arg-type]


def read_through(history: History, start: dict[int, int], chance: random.Random) -> list[int]:
    """The segments in an order in which a reader may come to their ends."""
    pieces = {i: Piece(i, segment.low, segment.high) for i, segment in history.segments.items()}
    frontier = Frontier([pieces[i] for i in start], [i for i, offset in start.items() if offset < 0])
    done: list[int] = []
    active = {segment.id for segment in history.epoch(history.newest)}
    while ready := [i for i in frontier.active if i not in active]:
        segment = chance.choice(ready)
        done.append(segment)
        frontier.complete(segment, [pieces[new.id] for new, _ in history.successors(segment)])
    return [*done, *frontier.active]


def made(found: dict[int, Found], **more: object) -> StreamAnew:
    anew = made_whole(remains_of(found, **more), NOW)
    assert anew is not None
    return anew


@given(histories, st.integers(0, 12), st.booleans(), st.randoms(use_true_random=False))
def test_no_segment_is_read_before_one_whose_keys_it_took(
    history: History, first: int, knows_seals: bool, chance: random.Random
) -> None:
    """All that a truncation left, with and without the seals."""
    found = found_of(history, first=min(first, history.newest), sealed=knows_seals)
    anew = made(found)
    for epoch in range(anew.history.newest + 1):
        assert tiles(anew.history.epoch(epoch))
    start = dict(anew.stream.head) or anew.history.head_of_time()
    assert anew.history.is_valid_cut(start)
    order = read_through(anew.history, start, chance)
    assert sorted(set(order) & found.keys()) == sorted(found), "each, and once"
    assert len(order) == len(set(order))
    for i, later in enumerate(order):
        for earlier in order[i + 1 :]:
            if earlier in found and later in found:
                is_before = earlier < later and share_keys(history.segments[earlier], history.segments[later])
                assert not is_before, "its keys' earlier events come later"
    live = [segment.id for segment in anew.stream.segments]
    assert set(live).isdisjoint(found) or len(live) == 1, "a key's next event comes after all that it had"
    assert anew.stream.state is StreamState.ACTIVE
    assert anew.history.epoch(anew.stream.epoch) == anew.stream.segments


@given(histories)
def test_cuts_within_an_epoch_stay_good(history: History) -> None:
    anew = made(found_of(history))
    first = {segment.id: 7 for segment in history.epoch(0)}
    assert anew.history.is_valid_cut(first)
    assert anew.history.is_at_or_after(anew.history.head_of_time() | first, first)
    tail = {segment.id: 100 for segment in anew.stream.segments}
    assert anew.history.is_valid_cut(tail)
    assert anew.history.is_at_or_after(tail, first)
    assert not anew.history.is_at_or_after(first, tail)
    assert set(anew.history.between(first, tail)) >= history.segments.keys()


@given(histories)
def test_a_whole_history_is_kept(history: History) -> None:
    anew = made(found_of(history), history=history)
    assert anew.history is history
    assert not anew.create
    assert anew.stream.segments == history.epoch(history.newest)
    stream = anew.stream
    assert made_whole(remains_of(found_of(history), stream=stream, history=history), NOW) is None


@given(histories, st.integers(0, 12))
def test_a_history_without_its_oldest_epochs_is_kept(history: History, first: int) -> None:
    known = history.forgetting(min(first, history.newest))
    found = found_of(history, first=known.first)
    anew = made(found, history=known)
    assert anew.history is known
    assert anew.stream.segments == history.epoch(history.newest)
    start = dict(anew.stream.head) or known.head_of_time()
    assert known.is_valid_cut(start)
    assert set(known.between(start, {})) == found.keys()
    assert made_whole(remains_of(found, stream=anew.stream, history=known), NOW) is None


@given(
    st.integers(0, 1 << 30),
    st.integers(1, 8),
    st.integers(1, 8),
    st.integers(0, 6),
    st.randoms(use_true_random=False),
)
def test_an_older_history_is_gone_on_with(
    seed: int, known: int, more: int, forgotten: int, chance: random.Random
) -> None:
    history = random_history(seed, known + more)
    known = min(known, history.newest - 1)
    while history.reference(known) != known:  # the two epochs of a rolling transaction are published together
        known -= 1
    older = History(history.changes[: known + 1]).forgetting(min(forgotten, known))
    newest = older.changes[-1]
    stream = Stream(Config(tags=("t",)), 1, StreamState.ACTIVE, known, known, newest.created_ms, older.epoch(known))
    found = found_of(history, first=older.first)
    anew = made(found, stream=stream, history=older)
    assert anew.history.changes[: len(older)] == older.changes
    assert all(anew.history.began_ms(i) == older.began_ms(i) for i in older.segments)
    assert anew.stream.config.tags == ("t",)
    order = read_through(anew.history, anew.history.head_of_time(), chance)
    assert set(order) >= found.keys()
    for i, later in enumerate(order):
        for earlier in order[i + 1 :]:
            if earlier in found and later in found:
                assert not (earlier < later and share_keys(history.segments[earlier], history.segments[later]))


def test_made_again_after_an_interruption_it_is_the_same() -> None:
    history = random_history(3, 6)
    anew = made(found_of(history))
    for there, are_sealed in itertools.product(range(len(anew.create) + 1), (False, True)):
        found = found_of(history)
        for i in anew.create[:there]:
            found[i] = Found(NAME.segment(i), is_sealed=are_sealed and i in anew.seal, created_ms=NOW)
        again = made(found)
        assert again.stream.segments == anew.stream.segments
        assert [change.barrier for change in again.history.changes] == [c.barrier for c in anew.history.changes]


def test_segments_that_never_had_anything_may_be_unknown() -> None:
    """Two of a stream's segments are found, and nothing tells of the third: writers go on behind, in order."""
    found = {i: Found(NAME.segment(i), length=9) for i in (0, 1)}
    anew = made(found)
    assert [segment_epoch(segment.id) for segment in anew.stream.segments] == [1, 1]
    assert set(anew.seal) >= {0, 1}
    begun = Segments(found, {"7": [0, 1, 2]})  # a transaction that was begun in all three
    whole = made_whole(Remains(NAME, None, None, begun), NOW)
    assert whole is not None
    assert [segment.id for segment in whole.history.epoch(0)] == [0, 1, 2]


def test_one_segment_goes_on_as_it_is() -> None:
    anew = made({0: Found(NAME.segment(0), length=9, created_ms=5)})
    assert (anew.create, anew.seal, anew.stream.epoch) == ([], [], 0)
    assert anew.stream == Stream(Config(), 5, StreamState.ACTIVE, 0, 0, 5, first_epoch(1, 5).added)


def test_what_was_sealed_or_deleted_stays_so() -> None:
    found = {i: Found(NAME.segment(i), length=9, is_sealed=True) for i in (0, 1)}
    assert made(found).stream.state is StreamState.SEALED
    half = {0: Found(NAME.segment(0), length=9)}
    deleted = made(half, work={"delete"})
    assert (deleted.stream.state, deleted.seal) == (StreamState.SEALED, [0]), "so that its deletion is finished"
    assert made_whole(remains_of(half, last_number=0), NOW) is None, "of one that was deleted"
    assert made_whole(remains_of(half, work={"create"}), NOW) is None, "it is being created"


def test_the_head_is_where_the_bytes_begin() -> None:
    history = History([first_epoch(2, 0)])
    history.add(history.plan_scale(0, [0], [(0.0, 0.25), (0.25, 0.5)], min_segments=1, time_ms=0))
    a, b = (segment_id(number, 1) for number in (2, 3))
    assert head_of(history, {0: 0, 1: 0, a: 0, b: 0}) == {}
    assert head_of(history, {0: 5, 1: 0, a: 0, b: 0}) == {0: 5, 1: 0}
    assert head_of(history, {1: 3, a: 4, b: 0}) == {1: 3, a: 4, b: 0}
    for starts in ({0: 5, 1: 0, a: 0, b: 0}, {1: 3, a: 4, b: 0}):
        assert history.is_valid_cut(head_of(history, starts))


def test_transactions_of_lost_epochs_are_ended() -> None:
    """What was to be committed is merged behind all, and before what comes next; the others can't be committed."""
    history = random_history(5, 4)
    texts = {f"{number:032x}": state for number, state in ((1, TxnState.COMMITTING), (2, TxnState.OPEN))}
    transactions = {text: Transaction(state, 2, 0, 0, 0, 0) for text, state in texts.items()}
    parents = [segment_id(number, 2) for number in (4, 5)]
    segments = Segments(found_of(history), dict.fromkeys(texts, parents))
    anew = made_whole(Remains(NAME, None, None, segments, transactions=transactions), NOW)
    assert anew is not None
    committed, aborted = texts
    assert anew.committed == [committed]
    assert list(anew.aborted) == [aborted]
    merged = sorted(anew.merge)
    assert [(segment_epoch(i), i & 0xFF) for i in merged] == [(history.newest + 1, 4), (history.newest + 1, 5)]
    assert all(NAME.segment(parent) in source[0] for parent, source in zip(parents, anew.merge.values(), strict=True))
    assert set(merged) <= set(anew.seal)
    order = read_through(anew.history, anew.history.head_of_time(), random.Random(1))
    assert max(map(order.index, segments.by_id)) < min(map(order.index, merged))
    assert {segment_epoch(segment.id) for segment in anew.stream.segments} == {history.newest + 2}


def test_how_long_a_tables_primary_keys_are_its_keys_tell() -> None:
    ranges = first_epoch(2, 0).added
    keys: dict[int, list[bytes]] = {0: [], 1: []}
    for number in range(30):
        key = b"%04d-secondary%04d" % (number, number)
        keys[0 if primary_key_position(key[:4]) < 0.5 else 1].append(key)
    segments = Segments({i: Found("", is_table=True, key_bytes=18) for i in (0, 1)})
    anew = table_anew(TableName("home", "kept"), segments, keys, -1, NOW)
    assert anew is not None
    assert (anew.table.config.primary_key_bytes, anew.table.config.secondary_key_bytes) == (4, 14)
    assert anew.table.segments == ranges
    keys[0], keys[1] = keys[1], keys[0]
    assert table_anew(TableName("home", "kept"), segments, keys, -1, NOW) is None


def test_a_chain_of_rolled_epochs_has_its_barriers_among_its_own() -> None:
    """Number 0 in a later epoch: there is no id before it, so it is read by itself first."""
    ids = [0, 1, segment_id(2, 1), segment_id(3, 1), segment_id(0, 2), segment_id(1, 2)]
    changes = chain([], ids, created_ms={})
    assert [change.barrier for change in changes] == [-1, segment_id(1, 1), segment_id(0, 2)]
    history = History(changes)
    order = read_through(history, history.head_of_time(), random.Random(0))
    assert [segment_epoch(segment) for segment in order] == [0, 0, 1, 1, 1, 2, 2]


def test_what_can_not_be_made_anew_keeps_nothing_else_from_it(caplog: pytest.LogCaptureFixture) -> None:
    """Of each kind one that fails and one after it; all failures are named."""

    async def refuse(command: Command) -> None:
        if "odd" in getattr(command, "segment", ""):
            raise InvalidArgumentError("it can't be")

    def table(name: str) -> TableAnew:
        segments = Segments({0: Found("", is_table=True, key_bytes=4)})
        made = table_anew(TableName("home", name), segments, {0: [b"keys"]}, -1, NOW)
        assert made is not None
        made.create = [0]
        return made

    async def make() -> None:
        store, clock = FakeStore(), FakeClock()
        segments = SegmentCommands(store.exchange, clock)
        flow = Workflows(Metadata(Store(segments)), segments, clock, Tasks())
        store.before = refuse
        group = ReaderGroup(GroupConfig(500, -1, 1, GroupRetention.NONE, {}), "0", 0, NOW)
        plan = Plan(
            scopes=["home"],
            streams=[mark_stream(StreamName("home", name), 0, NOW) for name in ("odd", "even")],
            tables=[table("odd"), table("even")],
            groups=[GroupAnew(GroupName("home", name), group) for name in ("odd", "even")],
            tagged=[(StreamName(scope, "even"), ("tag",)) for scope in ("odd", "home")],
        )
        kinds = ("stream home/odd", "the tags of stream odd/even", "key-value table home/odd", "reader group home/odd")
        with pytest.raises(UnavailableError, match=", ".join(kinds)):
            await carry_out(flow, plan)
        assert [record.getMessage() for record in caplog.records] == [
            f"{kind} can't be rebuilt: it can't be" for kind in kinds
        ]
        assert await flow.metadata.find_stream(StreamName("home", "even")) is not None
        assert await tags.unlisted(flow, StreamName("home", "even"), ["tag"]) == ()
        assert (await flow.metadata.table(TableName("home", "even"))).value.config.primary_key_bytes == 4
        assert (await flow.metadata.group(GroupName("home", "even"))).value == group

    asyncio.run(make())
