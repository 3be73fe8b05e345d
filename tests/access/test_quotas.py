"""Quotas of scopes and users: rates, counts, their changes, and the isolation of tenants, on real servers."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

import nadi
from nadi.access.quotas import IN, OUT, Brake, Quotas
from nadi.cli.app import app
from nadi.client import QuotaLimits, aio
from nadi.errors import InvalidArgumentError, NotFoundError, PermissionDeniedError, QuotaExceededError
from nadi.limits import QUOTA_BURST_S, QUOTA_WAIT_MAX_S
from nadi.model.quotas import QuotaShare
from nadi.standalone import EmbeddedServer

from .support import PASSWORD, guarded
from .test_server import connected

KIB = 1024
LIMITS = "log_file_bytes=16777216,quota_share_s=0.2,quota_stored_s=0.5,quota_counted_s=0.2"
APPLIED_S = 0.5


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def of_scope(*rates: float | None) -> QuotaShare:
    return QuotaShare("scope/home", (*rates, *[None] * (4 - len(rates))))


# --- one server's quotas, without a server -----------------------------------------------------------


def test_rate_over_its_burst_waits_until_the_mean_fits() -> None:
    clock = Clock()
    quotas = Quotas(clock)
    quotas.apply([of_scope(1000)])
    burst = round(1000 * QUOTA_BURST_S)
    assert quotas.take(IN, "home", "ann", burst) <= 0
    assert quotas.take(IN, "home", "bob", 500) == pytest.approx(0.5)
    assert quotas.take(IN, "home", "ann", 500) == pytest.approx(1.0), "behind the other"
    clock.now_s += 1
    assert quotas.take(IN, "home", "ann", 100) == pytest.approx(0.1)
    assert quotas.take(OUT, "home", "ann", 10**9) == 0, "only writes are limited"
    assert quotas.take(IN, "other", "ann", 10**9) == 0


def test_wait_of_one_request_is_bounded() -> None:
    quotas = Quotas(Clock())
    quotas.apply([of_scope(1)])
    assert quotas.take(IN, "home", "", 10**9) == QUOTA_WAIT_MAX_S


def test_requests_are_limited_as_bytes_are() -> None:
    quotas = Quotas(Clock())
    quotas.apply([QuotaShare("user/ann", (None, 10, None, None))])
    waits = [quotas.take(IN, "home", "ann", 1) for _ in range(30)]
    assert waits[9] <= 0 < waits[10]
    assert waits[29] == pytest.approx(2.0)
    assert quotas.take(IN, "home", "bob", 1) == 0
    assert quotas.take(IN, "home", None, 1) == 0, "the server itself isn't limited"


@pytest.mark.timeout(20)
async def test_waiting_peers_go_on_once_the_quota_is_raised_or_deleted() -> None:
    for change in ([of_scope(10_000)], []):
        quotas, resumed = Quotas(time.monotonic), asyncio.Event()
        quotas.apply([of_scope(10)])
        brake = Brake(quotas, resumed.set)
        brake.hold(quotas.take(IN, "home", "", 10_000))
        assert brake.is_on
        assert not resumed.is_set()
        quotas.apply(change)
        await resumed.wait()
        assert not quotas.waiting
        assert quotas.take(IN, "home", "", 100) <= 0, "no debt remains"


def test_connections_of_a_user_are_counted_before_there_is_a_quota() -> None:
    quotas = Quotas(Clock())
    assert quotas.connect("ann") == ""
    quotas.apply([QuotaShare("user/ann", (None,) * 4, connections=1)])
    assert "user/ann" in quotas.connect("ann")
    quotas.disconnect("ann")
    assert quotas.connect("ann") == ""
    assert quotas.connect("bob") == ""


# --- real servers ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NADI_LIMITS", LIMITS)
        with guarded(tmp_path_factory.mktemp("quotas"), rest_port=0) as server, connected(server, "root") as manager:
            manager.create_scope("home")
            manager.create_scope("other")
            yield server


@pytest.fixture
def root(guarded_server: EmbeddedServer) -> Iterator[nadi.StreamManager]:
    with connected(guarded_server, "root") as manager:
        yield manager
        for quota in manager.list_quotas():
            manager.delete_quota(quota.owner)
        time.sleep(APPLIED_S)


_numbers = itertools.count()


def new_stream(manager: nadi.StreamManager, scope: str = "home", segments: int = 1) -> str:
    name = f"s{next(_numbers)}"
    manager.create_stream(scope, name, segments)
    return name


def limited(manager: nadi.StreamManager, owner: str, **limits: int) -> None:
    assert manager.create_quota(owner, QuotaLimits(**limits))
    time.sleep(APPLIED_S)


def took_s(work: Callable[[], object]) -> float:
    began_s = time.monotonic()
    work()
    return time.monotonic() - began_s


def write(manager: nadi.StreamManager, stream: str, size_bytes: int, scope: str = "home") -> float:
    """Write events of 10 KiB; return the seconds until all are stored."""

    def work() -> None:
        with manager.create_writer(scope, stream) as writer:
            for _ in range(size_bytes // (10 * KIB)):
                writer.write_event(b"x" * 10 * KIB, "key")

    return took_s(work)


def test_writers_of_a_scope_are_slowed_without_an_error(
    root: nadi.StreamManager, guarded_server: EmbeddedServer
) -> None:
    stream, other = new_stream(root), new_stream(root, "other")
    assert write(root, stream, 2_000 * KIB) < 1.5
    limited(root, "scope/home", bytes_in=500 * KIB)
    assert 2.5 < write(root, stream, 2_500 * KIB) < 8, "500 KiB at once, then 500 KiB per second, a buffer at a time"
    assert write(root, other, 2_000 * KIB, "other") < 1.5
    assert root.quota("scope/home").used["bytes_in"] > 0


def test_quota_of_a_user_applies_to_that_user_alone(root: nadi.StreamManager, guarded_server: EmbeddedServer) -> None:
    stream = new_stream(root)
    limited(root, "user/writer", bytes_in=300 * KIB)
    with connected(guarded_server, "writer") as writer:
        assert write(writer, stream, 1_200 * KIB) > 1.5
    assert write(root, stream, 2_000 * KIB) < 1.5


def test_readers_are_slowed_without_an_error(root: nadi.StreamManager) -> None:
    stream = new_stream(root)
    write(root, stream, 3_000 * KIB)

    def read() -> None:
        assert sum(1 for _ in root.read_events("home", stream, end=root.cuts("home", stream).tail())) == 300

    assert took_s(read) < 1.5
    limited(root, "scope/home", bytes_out=500 * KIB)
    assert took_s(read) > 2


def test_http_requests_are_slowed_as_their_user(root: nadi.StreamManager, guarded_server: EmbeddedServer) -> None:
    stream = new_stream(root)
    limited(root, "user/writer", bytes_in=400 * KIB)

    def post(name: str) -> float:
        with httpx.Client(base_url=guarded_server.rest_uri, auth=(name, PASSWORD), timeout=60) as rest:
            path, body = f"/v1/scopes/home/streams/{stream}/events", b"x" * 400 * KIB
            return took_s(lambda: [rest.post(path, content=body).raise_for_status() for _ in range(4)])

    assert post("root") < 3
    assert post("writer") > 1.5


def test_raised_quota_lets_waiting_writers_go_on(root: nadi.StreamManager) -> None:
    stream = new_stream(root)
    limited(root, "scope/home", bytes_in=10 * KIB)
    with root.create_writer("home", stream) as writer:
        acks = [writer.write_event(b"x" * 10 * KIB, "key") for _ in range(200)]
        time.sleep(0.5)
        assert not acks[-1].done()
        root.update_quota("scope/home", QuotaLimits(bytes_in=100_000 * KIB))
        assert took_s(writer.flush) < 3


def test_streams_and_segments_over_the_quota_are_refused(root: nadi.StreamManager) -> None:
    root.create_scope("small")
    first = new_stream(root, "small", 2)
    limited(root, "scope/small", streams=2, segments=5)
    with pytest.raises(QuotaExceededError, match="segments of scope/small are limited to 5; it has 2 and would have 6"):
        root.create_stream("small", "large", 4)
    root.create_stream("small", "second", 3)
    with pytest.raises(QuotaExceededError, match="streams of scope/small are limited to 2; it has 2"):
        root.create_stream("small", "third")
    segments = [each.segment_id for each in root.current_segments("small", first)]
    with pytest.raises(QuotaExceededError, match="segments of scope/small are limited to 5"):
        root.scale_stream("small", first, segments[:1], [(0.0, 0.25), (0.25, 0.5)])
    quota = root.quota("scope/small")
    assert quota.used == {"streams": 2, "segments": 5}
    root.seal_stream("small", "second")
    root.delete_stream("small", "second")
    time.sleep(0.3)
    if root.quota("scope/small").used["streams"] == 1:  # the second was created over QUOTA_CREATED_S ago
        assert root.create_stream("small", "third")


def test_many_concurrent_creations_never_exceed_the_quota(
    guarded_server: EmbeddedServer, root: nadi.StreamManager
) -> None:
    root.create_scope("crowd")
    limited(root, "scope/crowd", streams=5)

    async def create(manager: aio.StreamManager, number: int) -> bool:
        try:
            return await manager.create_stream("crowd", f"c{number}")
        except QuotaExceededError:
            return False

    async def create_all() -> int:
        credentials = nadi.Basic("root", "correct horse")
        async with aio.StreamManager(guarded_server.controller_uri, credentials=credentials) as manager:
            return sum(await asyncio.gather(*(create(manager, number) for number in range(20))))

    assert asyncio.run(create_all()) == 5
    assert len(root.list_streams("crowd")) == 5


def test_full_scope_slows_its_writers_until_it_stores_less(root: nadi.StreamManager) -> None:
    root.create_scope("hoard")
    stream = new_stream(root, "hoard")
    write(root, stream, 500 * KIB, "hoard")
    limited(root, "scope/hoard", stored_bytes=100 * KIB)
    until_s = time.monotonic() + 30
    while root.quota("scope/hoard").used.get("stored_bytes", 0) < 500 * KIB and time.monotonic() < until_s:
        time.sleep(0.5)
    time.sleep(APPLIED_S)
    with pytest.raises(QuotaExceededError, match="stored_bytes"):
        new_stream(root, "hoard")
    with root.create_writer("hoard", stream) as writer:
        for _ in range(100):
            writer.write_event(b"x" * 10 * KIB, "key")
        time.sleep(1)
        root.truncate_stream(root.cuts("hoard", stream).tail())
        root.delete_quota("scope/hoard")
        assert took_s(writer.flush) < 5


def test_connections_over_the_quota_are_closed(guarded_server: EmbeddedServer, root: nadi.StreamManager) -> None:
    stream = new_stream(root)
    limited(root, "user/writer", connections=1)
    with connected(guarded_server, "writer") as first:
        write(first, stream, 10 * KIB)
        with connected(guarded_server, "writer") as second, second.create_writer("home", stream) as writer:
            ack = writer.write_event(b"x", "key")
            time.sleep(0.5)
            assert not ack.done()
            first.close()
            ack.result(20)


def test_invalid_quotas_and_strangers_are_refused(guarded_server: EmbeddedServer, root: nadi.StreamManager) -> None:
    for owner, limits in (
        ("home", QuotaLimits(bytes_in=1)),
        ("scope/a b", QuotaLimits(bytes_in=1)),
        ("scope/home", QuotaLimits()),
        ("scope/home", QuotaLimits(bytes_in=0)),
        ("scope/home", QuotaLimits(connections=1)),
        ("user/ann", QuotaLimits(streams=1)),
    ):
        with pytest.raises(InvalidArgumentError):
            root.create_quota(owner, limits)
    with pytest.raises(NotFoundError):
        root.update_quota("scope/home", QuotaLimits(streams=1))
    assert root.create_quota("scope/home", QuotaLimits(streams=1000))
    assert not root.create_quota("scope/home", QuotaLimits(streams=1001))
    assert root.delete_quota("scope/home")
    assert not root.delete_quota("scope/home")
    with connected(guarded_server, "writer") as writer, pytest.raises(PermissionDeniedError):
        writer.create_quota("user/writer", QuotaLimits(bytes_in=10**9))
    with connected(guarded_server, "stranger") as stranger, pytest.raises(PermissionDeniedError):
        stranger.list_quotas()


def test_quotas_over_rest_and_in_metrics(guarded_server: EmbeddedServer, root: nadi.StreamManager) -> None:
    with httpx.Client(base_url=guarded_server.rest_uri, auth=("root", "correct horse")) as rest:
        path = "/v1/quotas/scope/home"
        assert rest.get(path).status_code == 404
        assert rest.post(path, json={"bytes_in": 1_000_000, "streams": 900}).status_code == 201
        assert rest.post(path, json={"streams": 1}).status_code == 409
        assert rest.put(path, json={"bytes_in": 2_000_000}).json()["bytes_in"] == 2_000_000
        assert [quota["owner"] for quota in rest.get("/v1/quotas").json()] == ["scope/home"]
        time.sleep(APPLIED_S)
        text = rest.get("/metrics").text
        assert 'nadi_quota_limit{limit="bytes_in",owner="scope/home"} 2e+06' in text
        assert 'nadi_quota_slowed_seconds_total{owner="scope/home"}' in text
        assert rest.put(path, json={"bytes": 1}).status_code == 400
        assert rest.delete(path).status_code == 204
        assert rest.delete(path).status_code == 404


def test_command_line(tmp_path: Path) -> None:
    with nadi.embedded(tmp_path) as server:

        def run(*arguments: str) -> str:
            result = CliRunner().invoke(app, ["quota", *arguments, "--controller", server.controller_uri])
            return f"{result.exit_code} {result.output}"

        assert run("list").startswith("0 No quotas.")
        assert run("create", "scope/home", "--bytes-in", "10MB", "--streams", "5") == "0 created quota scope/home\n"
        assert "already exists" in run("create", "scope/home", "--streams", "5")
        assert run("update", "scope/home", "--streams", "none", "--segments", "7").startswith("0 updated")
        shown = run("show", "scope/home", "-o", "csv")
        assert "quota,bytes_in,segments,bytes_in_used,segments_used" in shown
        assert "scope/home,10000000,7,0.0,0" in shown
        assert "bytes_in 0 of 10,000,000" in run("list")
        assert run("create", "scope/home", "--streams", "many").startswith("2 ")
        assert run("delete", "scope/home").startswith("0 deleted")


def test_quotas_survive_a_restart(tmp_path: Path) -> None:
    for attempt in range(2):
        with nadi.embedded(tmp_path) as server, nadi.StreamManager(server.controller_uri) as manager:
            if not attempt:
                manager.create_scope("home")
                manager.create_quota("scope/home", QuotaLimits(streams=0))
                continue
            with pytest.raises(QuotaExceededError):
                manager.create_stream("home", "meters")


@pytest.mark.slow
def test_servers_of_a_cluster_share_a_rate(tmp_path: Path) -> None:
    """Writers to segments on both servers stay within the quota together; a stream on one server gets most of it."""
    store = tmp_path.as_uri()
    with (
        nadi.embedded(store=store, containers=4) as one,
        nadi.embedded(store=store),
        nadi.StreamManager(one.controller_uri) as manager,
    ):
        manager.create_scope("home")
        manager.create_stream("home", "wide", 8)
        narrow = new_stream(manager)
        limited(manager, "scope/home", bytes_in=400 * KIB)
        time.sleep(2)

        def written_s(stream: str, size_bytes: int) -> float:
            def work() -> None:
                with manager.create_writer("home", stream) as writer:
                    for number in range(size_bytes // (10 * KIB)):
                        writer.write_event(b"x" * 10 * KIB, f"{number}")

            return took_s(work)

        written_s("wide", 800 * KIB)  # the shares follow the use
        assert written_s("wide", 3_200 * KIB) > 3.5
        written_s(narrow, 800 * KIB)
        assert written_s(narrow, 2_000 * KIB) < 12, "5 s at the whole rate, 10 s at half of it"
        assert manager.quota("scope/home").used["bytes_in"] <= 600 * KIB


# --- isolation ---------------------------------------------------------------------------------------


def p99_ms(manager: nadi.StreamManager, stream: str, seconds: float) -> float:
    """Write an event of 1 KiB every 5 ms and wait for each; return the 99th percentile of the latencies."""
    latencies = []
    with manager.create_writer("other", stream) as writer:
        until_s = time.monotonic() + seconds
        while (began_s := time.monotonic()) < until_s:
            writer.write_event(b"x" * KIB, "key").result(10)
            latencies.append(time.monotonic() - began_s)
            time.sleep(0.005)
    return 1000 * sorted(latencies)[len(latencies) * 99 // 100]


@pytest.mark.slow
def test_tenant_at_ten_times_its_quota_leaves_the_other_its_latency(tmp_path: Path) -> None:
    """The greedy tenant offers ten times its quota, in a process of its own; latencies alternate in one run."""
    import subprocess
    import sys

    program = (
        "import sys, time, nadi\n"
        "with nadi.StreamManager(sys.argv[1]) as m, m.create_writer('home', 'greedy') as w:\n"
        "    began = time.monotonic()\n"
        "    for n in range(10**9):\n"
        "        w.write_event(b'x' * 1024, str(n % 16))\n"
        "        time.sleep(max(0, began + n / 10_000 - time.monotonic()))\n"
    )
    with nadi.embedded(tmp_path) as server, nadi.StreamManager(server.controller_uri) as manager:
        manager.create_scope("home")
        manager.create_scope("other")
        manager.create_stream("home", "greedy", 4)
        stream = new_stream(manager, "other")
        limited(manager, "scope/home", bytes_in=1_024_000)
        time.sleep(2)
        alone, beside = [], []
        for _ in range(3):
            alone.append(p99_ms(manager, stream, 8))
            with subprocess.Popen([sys.executable, "-c", program, server.controller_uri]) as greedy:
                time.sleep(3)
                beside.append(p99_ms(manager, stream, 8))
                assert greedy.poll() is None
                greedy.kill()
        assert sorted(beside)[1] <= 1.2 * sorted(alone)[1], (alone, beside)
