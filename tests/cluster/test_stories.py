"""No two servers ever answer reads of one container, and in the end each container is where it belongs."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from nadi.cluster.membership import Lease, Membership
from tests.simulation.machine.loop import run

from .keeping import TwoReadersError, tell


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


def all_of(seeds: Iterable[int]) -> None:
    for seed in seeds:
        run(tell(seed))


@pytest.mark.parametrize("seed", range(4))
def test_servers_come_go_pause_and_are_cut_off(seed: int) -> None:
    outcome = run(tell(seed))
    assert outcome.claims > 10
    assert outcome.deaths > 0
    assert outcome.terms > 6, "leases ended"


@pytest.mark.parametrize("seed", range(100, 102))
def test_by_a_registry_whose_lists_are_old(seed: int) -> None:
    run(tell(seed, stale_s=5.0))


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("first", range(1_000, 1_400, 50))
def test_in_four_hundred_stories(first: int) -> None:
    for seed in range(first, first + 50):
        run(tell(seed, stale_s=5.0 * (seed % 2)))


def test_a_lease_that_begins_again_by_a_beat_alone_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    extend = Lease.extend

    def revive(lease: Lease, sent: float) -> bool:
        is_new = extend(lease, sent)
        lease.affirm(lease.term)
        return is_new

    monkeypatch.setattr(Lease, "extend", revive)
    with pytest.raises(TwoReadersError):
        all_of(range(10))


def test_a_lease_that_is_extended_by_beats_without_an_answer_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    in_time = Membership._in_time

    async def hopeful(self: Membership, call: Any, *limits: float) -> Any:
        sent = self._runtime.boottime()
        try:
            return await in_time(self, call, *limits)
        finally:
            if limits:  # a beat
                self._lease.extend(sent)

    monkeypatch.setattr(Membership, "_in_time", hopeful)
    with pytest.raises(TwoReadersError):
        all_of(range(10))
