"""A chain keeps acknowledged frames in any race; and each of its rules is needed: without it, a round fails."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import pytest

from nadi.errors import CorruptLogError, UnavailableError
from nadi.segmentstore.chain import walk
from nadi.segmentstore.chain.layout import FRAME, SEAL, ChainPosition, Header, name_of, place_of
from nadi.segmentstore.chain.log import ChainLog
from nadi.segmentstore.chain.walk import ChainObjects
from tests.segmentstore.chain.racing import play

SEEDS = 100


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.timeout(900)  # a minute on an idle machine
@pytest.mark.parametrize("seeds", [range(40), pytest.param(range(40, 3_000), marks=pytest.mark.slow)])
def test_chain_keeps_acknowledged_frames_in_races(seeds: range) -> None:
    happened: Counter[str] = Counter()
    for seed in seeds:
        problems, counts = play(seed)
        assert not problems, (seed, problems)
        happened.update(dataclasses.asdict(counts))
    assert all(happened.values()), happened


def test_a_round_is_the_same_each_time() -> None:
    assert play(7) == play(7)


# --- rules that are switched off ------------------------------------------------------------------------

Patch = pytest.MonkeyPatch


def not_confirmed(patch: Patch) -> None:
    """R4: the claim isn't checked again once the chain is sealed."""

    async def never(_: object) -> None:
        pass

    original = ChainLog.__init__

    def unconfirmed(self: ChainLog, *arguments: object) -> None:
        original(self, *arguments[:4], never_asked, *arguments[5:])  # type: ignore[arg-type, call-arg]

    async def never_asked() -> None:
        pass

    patch.setattr(ChainLog, "__init__", unconfirmed)


def exists_means_stored(patch: Patch) -> None:
    """R6: the existing object isn't read."""

    async def store(self: ChainObjects, place: ChainPosition, parts: Sequence[bytes]) -> memoryview | None:
        async def attempt() -> None:
            await self._engine.create(name_of(self.container, place), parts)

        await self._until_done(attempt, 0)
        return None

    patch.setattr(ChainObjects, "store", store)


def no_answer_means_stored(patch: Patch) -> None:
    """R6: an attempt without an answer isn't repeated."""
    original = ChainObjects.store

    async def store(self: ChainObjects, place: ChainPosition, parts: Sequence[bytes]) -> memoryview | None:
        try:
            if await self._engine.create(name_of(self.container, place), parts):
                return None
        except UnavailableError:
            return None
        return await original(self, place, parts)

    patch.setattr(ChainObjects, "store", store)


def ends_where_a_listing_ends(patch: Patch) -> None:
    """R2: the seal follows the highest listed number."""
    original = walk.ChainWalk._seal

    async def seal(self: walk.ChainWalk, place: ChainPosition, sequence: int) -> memoryview | None:
        engine, container = self._objects._engine, self._objects.container
        folder = name_of(container, place).rpartition("/")[0]
        async for names in engine.listed(folder):
            found = [at for at in map(place_of, names) if at is not None]
            place = ChainPosition(place.epoch, max([place.number - 1, *(at.number for at in found)]) + 1)
        return await original(self, place, sequence)

    patch.setattr(walk.ChainWalk, "_seal", seal)


def only_the_brake(patch: Patch) -> None:
    """R3: the walk ends with the seal ahead, ignoring the gap before it."""
    original = walk.ChainWalk._seal

    async def seal(self: walk.ChainWalk, place: ChainPosition, sequence: int) -> memoryview | None:
        return await original(self, ChainPosition(place.epoch, place.number + 2), sequence)

    patch.setattr(walk.ChainWalk, "_seal", seal)


def seals_are_deleted(patch: Patch) -> None:
    """R7: seals are deleted with the frames before them."""
    original = ChainLog._delete

    async def delete(self: ChainLog) -> None:
        await original(self)
        engine, container = self._objects._engine, self._objects.container
        begin = self._position_of(self._safe + 1)
        async for names in engine.listed(f"log/{container}"):
            for name in names:
                place = place_of(name)
                data = await engine.get(name)
                if place is None or data is None or place >= begin:
                    continue
                header = Header.decode(data, container, place)
                if header is not None and header.kind == SEAL:
                    await engine.delete([name])

    patch.setattr(ChainLog, "_delete", delete)


def deletes_before_the_manifest_says_so(patch: Patch) -> None:
    """R7: a refused manifest releases frames."""
    original = ChainLog.start_after

    def start_after(self: ChainLog, sequence: int) -> object:
        start = original(self, sequence)
        self.released(start)
        self.truncate(sequence + 1)
        return start

    patch.setattr(ChainLog, "start_after", start_after)


def walks_on_past_a_later_epoch(patch: Patch) -> None:
    """R2: a claimant continues past a seal that names a later epoch."""
    original = walk.ChainWalk.links

    async def links(self: walk.ChainWalk, place: ChainPosition, sequence: int) -> object:
        self._epoch += 100  # every other epoch is earlier
        async for link in original(self, place, sequence):
            yield link

    patch.setattr(walk.ChainWalk, "links", links)


def anothers_frame_is_ones_own(patch: Patch) -> None:
    """R5: the owner of the object under the number isn't checked."""
    original = ChainObjects.store

    async def store(self: ChainObjects, place: ChainPosition, parts: Sequence[bytes]) -> memoryview | None:
        there = await original(self, place, parts)
        header = Header.decode(memoryview(b"".join(parts)), self.container, place)
        return there if header is not None and header.kind != FRAME else None

    patch.setattr(ChainObjects, "store", store)


MUTATIONS: list[Callable[[Patch], None]] = [
    not_confirmed,
    exists_means_stored,
    no_answer_means_stored,
    ends_where_a_listing_ends,
    only_the_brake,
    seals_are_deleted,
    deletes_before_the_manifest_says_so,
    walks_on_past_a_later_epoch,
    anothers_frame_is_ones_own,
]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_each_rule_is_needed(monkeypatch: pytest.MonkeyPatch, mutation: Callable[[Patch], None]) -> None:
    mutation(monkeypatch)
    for seed in range(SEEDS):
        try:
            problems, _ = play(seed)
        except (AssertionError, CorruptLogError, asyncio.InvalidStateError) as error:
            problems = [repr(error)]
        if problems:
            print(f"{mutation.__name__} is found by seed {seed}: {problems}")
            return
    raise AssertionError(f"{SEEDS} rounds go well without this rule")
