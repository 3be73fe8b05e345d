"""A server's lease ends before any other server declares it dead, despite delays and clocks that are 10 % off."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from nadi.cluster import membership_view as pace
from nadi.cluster.membership import ServerLease
from nadi.cluster.membership_view import GCS_PACE, MembershipPace
from nadi.runtime import Runtime
from tests.simulation.machine.loop import SimulatedLoop, run
from tests.support.waiting import until_async

from .support import Cluster

RATES = [0.9, 1.1]


class Clock(Runtime):
    now = 0.0

    def boottime(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lease(clock: Clock) -> ServerLease:
    return ServerLease(clock, 2.0)


@pytest.fixture
def quiet() -> Iterator[None]:
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


def test_a_lease_counts_from_when_the_beat_was_sent(clock: Clock, lease: ServerLease) -> None:
    assert not lease.is_valid()
    clock.now = 11.0
    assert lease.extend(10.0)
    assert lease.term == 1
    clock.now = 11.999
    assert lease.is_valid()
    clock.now = 12.0
    assert not lease.is_valid()


def test_an_older_beat_does_not_shorten_it(clock: Clock, lease: ServerLease) -> None:
    clock.now = 10.0
    lease.extend(10.0)
    assert not lease.extend(9.0)
    clock.now = 11.9
    assert lease.is_valid()


def test_beat_slower_than_the_lease_has_no_effect(clock: Clock, lease: ServerLease) -> None:
    clock.now = 12.0
    assert not lease.extend(10.0)
    assert lease.term == 0


def test_expired_lease_needs_affirmation(clock: Clock, lease: ServerLease) -> None:
    lease.extend(0.0)
    clock.now = 2.0
    assert lease.extend(1.5)
    assert lease.term == 2
    assert not lease.is_valid()
    lease.affirm(1)
    assert not lease.is_valid()
    clock.now = 3.0
    lease.extend(2.9)
    lease.affirm(2)
    clock.now = 4.8
    assert lease.is_valid()
    clock.now = 4.9
    assert not lease.is_valid()
    lease.affirm(2)
    assert not lease.is_valid()
    lease.extend(4.9)
    lease.affirm(2)
    assert lease.term == 3
    assert not lease.is_valid(), "an earlier term must not count"


def test_ended_lease_stays_invalid(clock: Clock, lease: ServerLease) -> None:
    lease.extend(0.0)
    lease.end()
    assert not lease.is_valid()
    assert not lease.extend(0.0)
    lease.affirm(1)
    assert not lease.is_valid()


async def worst_case(
    loop: SimulatedLoop, settings: MembershipPace, mine: float, theirs: float, wait_s: float = 5.0, **faults: Any
) -> float:
    """Return the time between the lease's end and the first other server seeing it as dead; negative if the lease was
    still valid."""
    cluster = Cluster(loop, pace=settings)
    (owner,) = cluster.add("owner", rate=mine, **faults)
    others = cluster.add("one", "two", "three", rate=theirs)
    await until_async(lambda: all(node.knows_all() for node in (owner, *others)))
    await asyncio.sleep(wait_s)
    owner.faults.hangs = True  # completed calls are still answered
    ended = died = None
    while ended is None or died is None:
        await asyncio.sleep(0.005)
        if died is None and any("owner" in node.dead() for node in others):
            died = loop.now
        if ended is None and not owner.membership.lease_is_valid():
            ended = loop.now
    return died - ended


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(("mine", "theirs"), list(itertools.product(RATES, RATES)))
@pytest.mark.parametrize(("before_s", "after_s"), list(itertools.product([0.0, 0.4], [0.0, 0.4])))
@pytest.mark.parametrize("settings", [MembershipPace(), pytest.param(GCS_PACE, marks=pytest.mark.slow)])
def test_lease_ends_before_any_server_declares_death(
    settings: MembershipPace, mine: float, theirs: float, before_s: float, after_s: float
) -> None:
    for wait_s in (5.0, 5.4, 5.8):
        case = partial(worst_case, settings=settings, mine=mine, theirs=theirs, wait_s=wait_s)
        assert run(partial(case, before_s=before_s, after_s=after_s)) > 0.3


@pytest.mark.usefixtures("quiet")
def test_longer_lease_would_be_unsafe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows that the tests above can fail."""
    monkeypatch.setattr(pace, "CLOCKS_DIFFER_TIMES", 1.0)
    long = MembershipPace(1.0, 2.9, 3.0)
    margins = [run(partial(worst_case, settings=long, mine=0.9, theirs=1.1, wait_s=5.0 + n / 5)) for n in range(10)]
    assert min(margins) < 0


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("suspended", [False, True])
def test_a_server_that_wakes_has_no_lease(suspended: bool) -> None:

    async def story(loop: SimulatedLoop) -> None:
        cluster = Cluster(loop)
        node, other = cluster.add("node", "other")
        await until_async(lambda: node.knows_all() and other.knows_all())
        pausing = asyncio.ensure_future(node.pause(2.5, suspended=suspended))
        await asyncio.sleep(2.1)
        assert not node.membership.lease_is_valid()
        assert "node" in other.alive()
        await pausing
        assert not node.membership.lease_is_valid()
        await until_async(lambda: node.membership.term == 2, 3.0)
        assert not node.membership.lease_is_valid()

    run(story)
