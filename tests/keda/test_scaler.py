"""A stream's numbers as KEDA gets them, from a whole server."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator

import grpc
import pytest

from nadi.client.aio import StreamManager
from nadi.limits import SCALER_WATCHES_OF_CONNECTION
from nadi.testing import RestartableServer
from nadi.wire.rpc import externalscaler_pb2 as pb

from .support import METERS, Keda, keda, refused, until
from .test_trigger import BAD

Meters = dict[str, str]


@pytest.fixture
async def manager(nadi_server: RestartableServer) -> AsyncIterator[StreamManager]:
    async with StreamManager(nadi_server.controller_uri) as manager:
        yield manager


@pytest.fixture
async def meters(manager: StreamManager) -> Meters:
    """A stream of its own for each test, as metadata says which."""
    name = f"meters-{time.monotonic_ns()}"
    await manager.create_scope("home")
    await manager.create_stream("home", name, 1)
    return {"scope": "home", "stream": name}


@pytest.fixture
async def asking(nadi_server: RestartableServer) -> AsyncIterator[Keda]:
    async with keda(nadi_server.controller_uri) as client:
        yield client


async def write(manager: StreamManager, meters: Meters, count: int, size_bytes: int = 100) -> None:
    writer = await manager.create_writer("home", meters["stream"])
    await asyncio.gather(*(writer.write_event(b"x" * size_bytes, f"{n}") for n in range(count)))


async def test_the_segments_of_a_stream(manager: StreamManager, meters: Meters, asking: Keda) -> None:
    spec = await asking.spec(**meters)
    assert (spec.metricName, spec.targetSize, spec.targetSizeFloat) == (
        f"nadi-segments-home-{meters['stream']}",
        1,
        1.0,
    )
    assert await asking.value(**meters) == 1.0
    await manager.scale_stream("home", meters["stream"], [0], [(0.0, 0.25), (0.25, 0.5), (0.5, 1.0)])
    metric = await asking.metric(**meters, target="2")
    assert (metric.metricValue, metric.metricValueFloat) == (3, 3.0)
    assert (await asking.spec(**meters, target="0.5")).targetSizeFloat == 0.5
    assert (await asking.spec(**meters, target="0.5")).targetSize == 1


async def test_an_idle_stream_becomes_active_within_a_second(
    manager: StreamManager, meters: Meters, asking: Keda
) -> None:
    assert not await asking.is_active(**meters)
    watch = asking.watch(**meters)
    changes = aiter(watch)
    assert (await anext(changes)).result is False
    began = time.monotonic()
    await write(manager, meters, 1)
    async with asyncio.timeout(60):
        assert (await anext(changes)).result is True
        assert time.monotonic() - began < 30  # a third of a second where nothing else runs
        await until(lambda: asking.is_active(**meters))
    watch.cancel()


async def test_the_rate_of_a_writer(manager: StreamManager, meters: Meters, asking: Keda) -> None:
    rate = {**meters, "metric": "rate"}
    assert await asking.value(**rate) == 0

    async def load() -> None:
        while True:
            await write(manager, meters, 20)
            await asyncio.sleep(0.1)  # at most 200 a second

    async def both() -> bool:
        events, size = await asking.value(**rate), await asking.value(**rate, unit="bytes")
        return 20 <= events <= 220 and 90 <= size / events <= 130

    writing = asyncio.ensure_future(load())
    try:
        await until(both)
        assert await asking.is_active(**rate)
        assert not await asking.is_active(**rate, activationTarget="100000")
    finally:
        writing.cancel()


async def test_the_lag_of_a_group(manager: StreamManager, meters: Meters, asking: Keda) -> None:
    groups = manager.reader_group_manager("home")
    await groups.create_reader_group("readers", meters["stream"])
    lag = {**meters, "metric": "lag", "readerGroup": "readers"}
    assert await asking.value(**lag) == 0
    await write(manager, meters, 10, 92)
    await until(lambda: is_value(asking, 1000, lag))
    assert await asking.is_active(**lag)
    assert not await asking.is_active(**lag, activationTarget="1000")
    async with await (await groups.get_reader_group("readers")).create_reader("one") as reader:
        for _ in range(10):
            assert await reader.read_next_event(60)
    await until(lambda: is_value(asking, 0, lag))
    assert not await asking.is_active(**lag)


async def is_value(asking: Keda, value: float, metadata: Meters) -> bool:
    return await asking.value(**metadata) == value


# --- what it is refused -----------------------------------------------------------------------------


async def test_every_rpc_says_what_is_wrong_with_a_trigger(asking: Keda) -> None:
    for more, message in BAD:
        metadata = {**METERS, **more}
        request = pb.GetMetricsRequest(scaledObjectRef=asking.ref(metadata), metricName="nadi-segments-home-meters")
        for answer in (
            asking.spec(**metadata),
            asking.is_active(**metadata),
            asking.ask("GetMetrics", request, pb.GetMetricsResponse),
            anext(aiter(asking.watch(**metadata))),
        ):
            code, said = await refused(answer)
            assert code == "INVALID_ARGUMENT"
            assert re.match(f"the trigger's metadata: {message}", said)


async def test_what_is_not_there(meters: Meters, asking: Keda) -> None:
    absent = {**meters, "stream": "gas"}
    for answer in (asking.is_active(**absent), asking.value(**absent), anext(aiter(asking.watch(**absent)))):
        code, said = await refused(answer)
        assert (code, said.partition(":")[0]) == ("NOT_FOUND", "there is no stream home/gas")
    code, said = await refused(asking.value(**meters, metric="lag", readerGroup="nobody"))
    assert (code, "home/nobody" in said) == ("NOT_FOUND", True)
    request = pb.GetMetricsRequest(scaledObjectRef=asking.ref(meters), metricName="nadi-rate-home-gas")
    assert await refused(asking.ask("GetMetrics", request, pb.GetMetricsResponse)) == (
        "INVALID_ARGUMENT",
        f"this trigger has no metric 'nadi-rate-home-gas': ask for nadi-segments-home-{meters['stream']}",
    )
    code, _ = await refused(asking.ask("StreamMetricSpec", asking.ref(meters), pb.GetMetricSpecResponse))
    assert code == "UNIMPLEMENTED"  # then KEDA goes on asking


# --- watches ----------------------------------------------------------------------------------------


async def test_a_connection_has_a_limited_number_of_watches(
    manager: StreamManager, meters: Meters, asking: Keda
) -> None:
    watches = [asking.watch(**meters) for _ in range(SCALER_WATCHES_OF_CONNECTION)]
    for watch in watches:
        assert (await anext(aiter(watch))).result is False
    code, said = await refused(anext(aiter(asking.watch(**meters))))
    assert (code, "there are too many calls of StreamIsActive: 50 on a connection" in said) == ("UNAVAILABLE", True)
    assert await asking.value(**meters) == 1  # other calls are answered
    watches.pop().cancel()

    async def finds_a_place() -> bool:
        watch = asking.watch(**meters)
        try:
            return (await anext(aiter(watch))).result is False
        except grpc.aio.AioRpcError:
            return False
        finally:
            watch.cancel()

    await until(finds_a_place)  # those of clients that go are free again
    for watch in watches:
        watch.cancel()


async def test_a_watch_ends_with_its_stream(manager: StreamManager, meters: Meters, asking: Keda) -> None:
    changes = aiter(asking.watch(**meters))
    assert (await anext(changes)).result is False
    await manager.seal_stream("home", meters["stream"])
    await manager.delete_stream("home", meters["stream"])
    assert (await refused(anext(changes)))[0] == "NOT_FOUND"
