"""Liveness of servers, as seen through a registry, in virtual time."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Coroutine
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import nadi
from nadi import limits
from nadi.cluster.admin.cluster_view import live_servers, open_shared_store
from nadi.cluster.membership import Load
from nadi.cluster.membership_view import FOLDER, GCS_PACE, MembershipPace, ServerMember, decode, encode
from nadi.errors import InvalidArgumentError, UnavailableError
from nadi.limits import CLUSTER_DEAD_RETAINED
from nadi.object_log.checksummed_lines import line_of, value_of
from tests.simulation.machine.loop import run
from tests.support.clocks import StandsStill
from tests.support.waiting import until_async

from .support import Cluster, Node

CLUSTER_FORGET_S = 600.0  # a short day

Story = Callable[[Cluster], Coroutine[Any, Any, None]]


def in_virtual_time(story: Story) -> Callable[[], None]:
    @wraps(story)
    def test() -> None:
        run(lambda loop: story(Cluster(loop)))

    del test.__wrapped__
    return test


async def three(cluster: Cluster, **faults: Any) -> list[Node]:
    nodes = cluster.add("a", "b", "c", **faults)
    await until_async(lambda: all(node.knows_all() for node in nodes))
    return nodes


async def next_put(node: Node) -> None:
    puts = node.registry.calls["put"]
    await until_async(lambda: node.registry.calls["put"] > puts)


@in_virtual_time
async def test_servers_read_each_others_entries(cluster: Cluster) -> None:
    a, b, c = await three(cluster, before_s=0.02, after_s=0.02)
    b.load = Load(3, 1e6)
    await asyncio.sleep(8.0)
    seen = a.membership.members["b"].member
    assert seen is not None
    assert (seen.store, seen.containers, seen.bytes_per_s) == ("b:12345", 3, 1e6)
    assert seen.counter > 1
    assert c.membership.members["c"].member is not None
    assert a.membership.lease_is_valid()


@in_virtual_time
async def test_killed_server_is_dead_after_three_seconds(cluster: Cluster) -> None:
    a, b, c = await three(cluster, before_s=0.02, after_s=0.02)
    await asyncio.sleep(1.0)  # until all servers have seen all others join
    changes = a.changes
    c.kill()
    elapsed_s = await until_async(lambda: a.dead() == b.dead() == {"c"})
    assert 2.0 < elapsed_s < 4.2
    await asyncio.sleep(0.1)  # reported once the whole poll is processed
    assert a.changes == changes + 1
    assert a.membership.stable_since == a.membership.members["c"].since
    await asyncio.sleep(60.0)
    assert a.alive() == {"a", "b"}
    assert a.changes == changes + 1


async def server_polling_while_c_is_killed(cluster: Cluster) -> Node:
    """Return a server whose poll, which takes 0.3 s, began just before "c" was killed."""
    (a,) = cluster.add("a", after_s=0.3)
    await until_async(a.knows_all)
    await asyncio.sleep(0.5)
    (c,) = cluster.add("c", after_s=0.3)  # beats between two polls
    await until_async(a.knows_all)
    await asyncio.sleep(1.0)
    lists = a.registry.calls["list"]
    await until_async(lambda: a.registry.calls["list"] > lists)  # the poll begins, and includes the last beat
    c.kill()
    return a


@in_virtual_time
async def test_death_is_detected_without_waiting_for_next_poll(cluster: Cluster) -> None:
    a = await server_polling_while_c_is_killed(cluster)
    await asyncio.sleep(0.5)
    a.faults.after_s = 0.0
    elapsed_s = await until_async(lambda: "c" not in a.alive())
    assert 2.7 < elapsed_s < 2.9  # 3 s from the end of that poll


@in_virtual_time
async def test_death_due_during_query_of_another_server_is_detected(cluster: Cluster) -> None:
    a = await server_polling_while_c_is_killed(cluster)
    await asyncio.sleep(2.5)  # 0.8 s before c can be declared dead
    a.faults.after_s = 0.25
    cluster.add("d")  # the next poll finds it, and querying it takes 0.25 s
    elapsed_s = await until_async(lambda: "c" not in a.alive())
    assert 1.2 < elapsed_s < 1.3


@in_virtual_time
async def test_lost_beat_does_not_end_lease(cluster: Cluster) -> None:
    a, _, _ = await three(cluster, after_s=0.05)
    for _ in range(5):
        a.faults.failing = {"put"}
        await next_put(a)
        await asyncio.sleep(0.1)
        a.faults.failing = set()
        await asyncio.sleep(3.0)
    assert a.membership.term == 1
    assert a.membership.lease_is_valid()


@in_virtual_time
async def test_paused_server_is_dead_then_alive_again(cluster: Cluster) -> None:
    a, b, c = await three(cluster)
    await c.pause(10.0)
    assert a.dead() == b.dead() == {"c"}
    await until_async(lambda: a.dead() == b.dead() == set(), 2.5)
    assert c.alive() == {"a", "b", "c"}, "the paused server must not declare others dead"
    assert c.membership.term == 2
    assert not c.membership.lease_is_valid()
    c.membership.affirm(2)
    assert c.membership.lease_is_valid()


@in_virtual_time
async def test_short_pause_declares_no_server_dead(cluster: Cluster) -> None:
    a, _, c = await three(cluster, before_s=0.05, after_s=0.05)
    for _ in range(20):
        await c.pause(1.5)
        await asyncio.sleep(2.0)
        assert a.alive() == {"a", "b", "c"}


@in_virtual_time
async def test_flapping_server_notifies_each_change(cluster: Cluster) -> None:
    a, _, c = await three(cluster)
    changes = a.changes
    for _ in range(5):
        await c.pause(8.0)
        await asyncio.sleep(4.0)
    assert a.changes == changes + 10
    assert a.clock.monotonic() - a.membership.stable_since < 5.0


@in_virtual_time
async def test_failing_polls_declare_none_dead_and_restart_timeouts(cluster: Cluster) -> None:
    a, b, c = await three(cluster)
    a.faults.failing = {"list"}
    await asyncio.sleep(1.5)
    c.kill()
    await asyncio.sleep(20.0)
    assert a.alive() == {"a", "b", "c"}
    assert not a.membership.view({}, 1).is_current
    assert b.dead() == {"c"}
    a.faults.failing = set()
    elapsed_s = await until_async(lambda: a.dead() == {"c"})
    assert 3.0 <= elapsed_s < 4.2
    assert a.membership.view({}, 1).is_current


@in_virtual_time
async def test_hanging_poll_counts_as_failed(cluster: Cluster) -> None:
    a, b, _ = await three(cluster)
    a.faults.hangs = True
    await asyncio.sleep(30.0)
    assert a.alive() == {"a", "b", "c"}
    assert b.dead() == {"a"}
    a.faults.hangs = False
    await until_async(lambda: b.dead() == set(), 5.0)
    await asyncio.sleep(5.0)
    assert a.alive() == b.alive() == {"a", "b", "c"}


@in_virtual_time
async def test_registry_outage_declares_no_server_dead(cluster: Cluster) -> None:
    nodes = await three(cluster)
    for node in nodes:
        node.faults.is_down = True

    def none_is_dead() -> None:
        assert all(node.alive() == {"a", "b", "c"} for node in nodes)

    await cluster.watch(20.0, none_is_dead)
    assert not any(node.membership.lease_is_valid() for node in nodes)
    for node in nodes:  # one by one
        node.faults.is_down = False
        await cluster.watch(0.9, none_is_dead)
    await cluster.watch(20.0, none_is_dead)
    assert [node.membership.term for node in nodes] == [2, 2, 2]


@in_virtual_time
async def test_a_put_that_hangs_does_not_stop_the_beats(cluster: Cluster) -> None:
    a, b, _ = await three(cluster)
    a.faults.hangs = True
    await asyncio.sleep(0.99)  # one beat
    a.faults.hangs = False

    def is_alive() -> None:
        assert b.alive() == {"a", "b", "c"}
        assert a.membership.lease_is_valid()

    await cluster.watch(10.0, is_alive)
    assert a.membership.term == 1


@in_virtual_time
async def test_few_puts_are_under_way_while_all_hang(cluster: Cluster) -> None:
    a, _, _ = await three(cluster)
    a.faults.hangs = True
    await asyncio.sleep(60.0)
    assert len(a.membership._beats) <= 4
    assert a.registry.calls["put"] > 55


@in_virtual_time
async def test_slow_beats_keep_a_server_alive_though_it_has_no_lease(cluster: Cluster) -> None:
    a, b, _ = await three(cluster)
    a.faults.before_s = 1.1
    a.faults.after_s = 1.1
    await asyncio.sleep(5.0)

    def lives() -> None:
        assert "a" in b.alive()
        assert not a.membership.lease_is_valid()

    await cluster.watch(60.0, lives)
    assert a.membership.term == 1


@in_virtual_time
async def test_a_beat_without_an_answer_does_not_extend_the_lease(cluster: Cluster) -> None:
    a, b, _ = await three(cluster)
    a.faults.unanswered = 1.0
    await asyncio.sleep(2.1)
    assert not a.membership.lease_is_valid()
    await asyncio.sleep(10.0)
    assert "a" in b.alive()
    assert a.membership.term == 1


@in_virtual_time
async def test_leaving_server_is_dead_after_next_poll(cluster: Cluster) -> None:
    a, b, c = await three(cluster)
    a.membership.name({"c"})
    await c.membership.leave()
    assert not c.membership.lease_is_valid()
    assert await until_async(lambda: a.dead() == {"c"}) < 1.1
    await until_async(lambda: b.alive() == {"a", "b"}, 1.1)
    await asyncio.sleep(60.0)
    assert a.sees() == {"a": True, "b": True, "c": False}, "remembered because a record names it"
    assert b.sees() == {"a": True, "b": True}
    assert set(cluster.records.values) == {"servers/a", "servers/b"}


@in_virtual_time
async def test_a_beat_under_way_does_not_bring_the_entry_back(cluster: Cluster) -> None:
    _, _, c = await three(cluster)
    c.faults.before_s = 1.5
    await next_put(c)
    c.faults.before_s = 0.0
    await c.membership.leave()
    await asyncio.sleep(10.0)
    assert FOLDER + "c" not in cluster.records.values


@in_virtual_time
async def test_leave_returns_though_entry_cannot_be_removed(cluster: Cluster) -> None:
    a, _, c = await three(cluster)
    c.faults.hangs = True
    start = cluster.loop.now
    await c.membership.leave()
    assert cluster.loop.now - start < 10.0
    await until_async(lambda: a.dead() == {"c"}, 5.0)


@in_virtual_time
async def test_draining_is_announced(cluster: Cluster) -> None:
    a, _, c = await three(cluster)
    await asyncio.sleep(30.0)
    changes = a.changes
    c.membership.drain()
    await until_async(lambda: a.membership.view({}, 1).servers["c"].is_draining, 6.5)
    assert c.membership.view({}, 1).servers["c"].is_draining
    view = a.membership.view({}, 1)
    assert a.changes == changes + 1
    assert view.servers["c"].since == view.stable_since
    assert view.order() == (view.order()[0],)
    assert "c" not in view.order()[0]


@in_virtual_time
async def test_restarted_server_is_a_new_member(cluster: Cluster) -> None:
    a, _, c = await three(cluster)
    c.kill()
    cluster.add("d")
    await until_async(lambda: a.alive() == {"a", "b", "d"}, 5.0)
    assert a.dead() == {"c"}


@in_virtual_time
async def test_newly_seen_server_gets_full_timeout(cluster: Cluster) -> None:
    a, b, c = await three(cluster)
    c.kill()
    await asyncio.sleep(60.0)
    (d,) = cluster.add("d")
    await until_async(lambda: "c" in d.alive(), 1.0)
    start = cluster.loop.now
    await until_async(lambda: d.dead() == {"c"})
    assert cluster.loop.now - start > 2.9
    assert a.sees() == b.sees() == d.sees()


@in_virtual_time
async def test_server_named_in_record_is_queried(cluster: Cluster) -> None:
    a, _, _ = await three(cluster)
    assert "gone" not in a.membership.view({}, 1).servers
    a.membership.name({"gone", "b"})
    await until_async(lambda: a.dead() == {"gone"}, 1.1)
    assert not a.membership.view({}, 1).servers["gone"].is_alive
    assert a.membership.stable_since < a.membership.members["gone"].since, "membership didn't change"
    a.membership.name({"b"})
    await asyncio.sleep(1.1)
    assert "gone" not in a.sees()


@in_virtual_time
async def test_a_named_server_is_not_dead_while_it_cannot_be_looked_up(cluster: Cluster) -> None:
    a, _, _ = await three(cluster)
    a.faults.failing = {"get"}
    a.membership.name({"unknown"})
    await asyncio.sleep(10.0)
    assert "unknown" not in a.membership.view({}, 1).servers


@in_virtual_time
async def test_stale_lists_change_no_liveness(cluster: Cluster) -> None:
    cluster.records.keeps_history = True
    a, b, c = await three(cluster, stale_s=8.0)

    def all_live() -> None:
        assert a.alive() == b.alive() == {"a", "b", "c"}

    await asyncio.sleep(8.0)
    await cluster.watch(60.0, all_live)
    c.kill()
    await until_async(lambda: "c" in a.dead(), 20.0)
    changes = a.changes
    await asyncio.sleep(60.0)
    assert a.changes == changes
    assert a.dead() == {"c"}


@in_virtual_time
async def test_is_dead_queries_registry_again(cluster: Cluster) -> None:
    a, _, c = await three(cluster)
    assert not await a.membership.is_dead("c")
    assert not await a.membership.is_dead("nobody")
    pause = asyncio.ensure_future(c.pause(10.0))
    await until_async(lambda: "c" in a.dead())
    assert await a.membership.is_dead("c")
    a.faults.failing = {"list"}
    await pause
    await asyncio.sleep(0.5)
    assert a.dead() == {"c"}, "not polled yet"
    assert not await a.membership.is_dead("c")
    assert a.dead() == set()
    a.faults.failing = {"get", "list"}
    c.kill()
    assert not await a.membership.is_dead("c"), "a live server needs no query"
    a.faults.failing = set()
    await until_async(lambda: "c" in a.dead())
    a.faults.failing = {"get"}
    with pytest.raises(UnavailableError):
        await a.membership.is_dead("c")


@pytest.fixture
def short_days(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CLUSTER_FORGET_S", CLUSTER_FORGET_S)


@pytest.mark.usefixtures("short_days")
@in_virtual_time
async def test_dead_entries_are_deleted_after_a_day(cluster: Cluster) -> None:
    a, _, c = await three(cluster)
    pausing = asyncio.ensure_future(c.pause(CLUSTER_FORGET_S + 60.0))
    await asyncio.sleep(CLUSTER_FORGET_S - 60.0)
    assert a.dead() == {"c"}
    await asyncio.sleep(90.0)
    assert a.sees() == {"a": True, "b": True}
    assert FOLDER + "c" not in cluster.records.values
    await pausing  # it was only paused
    await until_async(lambda: a.alive() == {"a", "b", "c"}, 5.0)


@in_virtual_time
async def test_of_many_dead_entries_the_oldest_are_deleted(cluster: Cluster) -> None:
    (a,) = cluster.add("a")
    for number in range(CLUSTER_DEAD_RETAINED + 20):
        name = f"dead-{number:03d}"
        cluster.records.set(FOLDER + name, encode(member(name)))
    await asyncio.sleep(30.0)
    assert len(a.dead()) == CLUSTER_DEAD_RETAINED
    assert len(cluster.records.values) == CLUSTER_DEAD_RETAINED + 1


@in_virtual_time
async def test_undecodable_entry_is_alive_but_gets_no_containers(cluster: Cluster) -> None:
    (a,) = cluster.add("a")
    for number in range(100):
        cluster.records.set(FOLDER + "odd", b"odd %d" % number)
        await asyncio.sleep(0.5)
        if number > 5:
            assert a.membership.members["odd"].member is None
            assert a.alive() == {"a", "odd"}
            assert a.membership.view({}, 1).order() == (("a",),)
    await until_async(lambda: a.dead() == {"odd"}, 5.0)
    cluster.records.set(FOLDER + "odd", b"again")
    await until_async(lambda: a.alive() == {"a", "odd"}, 2.0)


@in_virtual_time
async def test_late_beat_does_not_override_newer_one(cluster: Cluster) -> None:
    a, _, c = await three(cluster)
    c.membership.drain()
    await asyncio.sleep(7.0)
    assert a.membership.view({}, 1).servers["c"].is_draining
    c.kill()
    cluster.records.set(FOLDER + "c", encode(replace(member("c"), counter=1)))
    await asyncio.sleep(2.5)
    assert a.membership.view({}, 1).servers["c"].is_draining
    await until_async(lambda: "c" in a.dead(), 5.0)
    cluster.records.set(FOLDER + "c", encode(replace(member("c"), counter=2)))
    await asyncio.sleep(10.0)
    assert a.dead() == {"c"}, "a beat from before its death"


@in_virtual_time
async def test_unforeseen_errors_do_not_stop_membership(cluster: Cluster) -> None:
    a, b, _ = await three(cluster)
    put, listing = a.registry.put, a.registry.list

    async def breaks(*_: Any) -> Any:
        raise ZeroDivisionError

    logging.disable(logging.ERROR)
    try:
        a.registry.put, a.registry.list = breaks, breaks  # type: ignore[assignment, method-assign]
        await asyncio.sleep(10.0)
    finally:
        logging.disable(logging.NOTSET)
    assert b.dead() == {"a"}
    a.registry.put, a.registry.list = put, listing  # type: ignore[method-assign]
    await until_async(lambda: b.dead() == a.dead() == set(), 3.0)


@in_virtual_time
async def test_fifty_servers(cluster: Cluster) -> None:
    names = [f"s{number:02d}" for number in range(50)]
    nodes = cluster.add(*names, before_s=0.03, after_s=0.03, spread=1.0, lost=0.01, unanswered=0.01)
    await until_async(lambda: all(len(node.alive()) == 50 for node in nodes), 10.0)
    calls = sum(nodes[0].registry.calls.values())
    await asyncio.sleep(20.0)
    assert all(len(node.alive()) == 50 for node in nodes)
    assert sum(nodes[0].registry.calls.values()) - calls < 20 * (2 + 50 / 5) * 1.1
    orders = {node.membership.view({}, 100).order() for node in nodes}
    assert len(orders) == 1
    for node in nodes[:20]:
        node.kill()
    elapsed_s = await until_async(lambda: all(len(node.alive()) == 30 for node in nodes[20:]), 10.0)
    assert elapsed_s < 8.0, "some queries are lost"


def test_gcs_pace() -> None:
    async def story(cluster: Cluster) -> None:
        a, b, c = await three(cluster, before_s=0.2, after_s=0.2)
        puts = a.registry.calls["put"]
        await asyncio.sleep(60.0)
        assert a.registry.calls["put"] - puts in (29, 30, 31)
        c.kill()
        assert 4.0 < await until_async(lambda: a.dead() == b.dead() == {"c"}) < 9.0

    run(lambda loop: story(Cluster(loop, pace=GCS_PACE)))


@pytest.mark.parametrize(("beat_s", "lease_s", "dead_s"), [(1.0, 1.9, 3.0), (1.0, 2.0, 2.4), (2.0, 5.0, 6.0)])
def test_unsafe_pace_is_rejected(beat_s: float, lease_s: float, dead_s: float) -> None:
    with pytest.raises(InvalidArgumentError):
        MembershipPace(beat_s, lease_s, dead_s)


def member(name: str) -> ServerMember:
    return ServerMember(id=name, store="h:1", controller="h:2", rest="h:3", version="0.1.0", started_ms=1)


def test_entries() -> None:
    entry = replace(member("x"), counter=7, is_draining=True)
    assert decode(encode(entry)) == entry
    value = value_of(encode(entry)) or b""
    assert decode(line_of(value[:-1] + b',"of_a_later_version":[1]}')) == entry
    assert decode(encode(entry).replace(b'"h:1"', b'"h:2"')) is None
    assert decode(b"{}") is None
    assert decode(b"\xff") is None


# --- liveness as seen by a program that reads the store -----------------------------------------------


def test_living_counts_servers_paused_with_the_machine(tmp_path: Path) -> None:
    store = (tmp_path / "store").as_uri()
    with nadi.embedded(tmp_path / "one", store=store, containers=1) as server:

        def resume(sleeps: int) -> None:
            if sleeps == 3:
                os.kill(server.pid, signal.SIGCONT)

        async def look() -> list[str]:
            async with open_shared_store(store, {}, StandsStill(resume)) as shared:
                return await live_servers(shared)

        os.kill(server.pid, signal.SIGSTOP)
        assert len(asyncio.run(look())) == 1


def test_living_omits_killed_server(tmp_path: Path) -> None:
    store = (tmp_path / "store").as_uri()
    nadi.embedded(tmp_path / "one", store=store, containers=1).kill()

    async def look() -> list[str]:
        async with open_shared_store(store, {}) as shared:
            return await live_servers(shared)

    assert asyncio.run(look()) == []
