"""`GET /metrics`, read by the official parser: metrics are complete, correct and bounded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import httpx
import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

import nadi
from nadi.client import StreamManager
from nadi.controller.metrics import MEANINGS, OTHERS
from nadi.standalone.embedded import EmbeddedServer
from nadi.wire.rpc import controller_pb2 as pb
from tests.controller.rpc import calls
from tests.controller.test_reader_groups import group_config

Samples = dict[str, dict[tuple[str, ...], float]]
LABELS = ("kind", "scope", "reader_group", "stream")


def samples(text: str) -> Samples:
    """Parse the controller's and the process's samples: by sample name, then by label values in the order of LABELS."""
    by_name: Samples = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation
        if family.name.removesuffix("_total") not in MEANINGS and not family.name.startswith("process_"):
            continue
        for sample in family.samples:
            values = by_name.setdefault(sample.name, {})
            labels = tuple(sample.labels[label] for label in LABELS if label in sample.labels)
            assert len(labels) == len(sample.labels)
            assert labels not in values, "each sample appears once"
            values[labels] = sample.value
    return by_name


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """A server that reports two streams and two groups by name, with four of each; nothing is cached."""
    limits = "metrics_streams=2,metrics_groups=2,metrics_cached_s=0.000001"
    limits += ",metrics_names_s=60,metrics_lags_s=60,metrics_cache_s=60"  # so that a slow machine omits nothing
    environment = {"NADI_LIMITS": limits}
    with (
        nadi.embedded(tmp_path_factory.mktemp("data"), rest_port=0, environment=environment) as server,
        StreamManager(server.controller_uri) as manager,
    ):
        manager.create_scope("home")
        groups = manager.reader_group_manager("home")
        for number in range(1, 5):
            manager.create_stream("home", f"s{number}", number)
            groups.create_reader_group(f"g{number}", f"s{number}")
            with manager.create_writer("home", f"s{number}") as writer:
                for key in range(number * 50):
                    writer.write_event(b"." * 92, routing_key=f"{key}")
        asyncio.run(_with_a_java_group(server))
        yield server


async def _with_a_java_group(server: EmbeddedServer) -> None:
    cuts = [pb.StreamCut(streamInfo=pb.StreamInfo(scope="home", stream="s4"))]
    async with calls(server.controller_uri.removeprefix("tcp://")) as call:
        await call("createReaderGroup", group_config("java", startingStreamCuts=cuts))


@pytest.fixture(scope="module")
def scraped(small: EmbeddedServer) -> Samples:
    end = time.monotonic() + 60
    while True:  # rates become known half a second after the first event
        found = samples(httpx.get(f"{small.rest_uri}/metrics", timeout=60).raise_for_status().text)
        if found["nadi_stream_bytes_per_second"].get(("home", "s4"), 0) > 0 and _are_ordered(found):
            return found
        assert time.monotonic() < end
        time.sleep(0.1)


def _are_ordered(found: Samples) -> bool:
    return set(found["nadi_stream_segments"]) == {("home", "s3"), ("home", "s4"), ("", OTHERS)}


def test_streams(scraped: Samples) -> None:
    assert scraped["nadi_streams"] == {(): 4}
    assert scraped["nadi_stream_segments"] == {("home", "s3"): 3, ("home", "s4"): 4, ("", OTHERS): 1 + 2}
    assert scraped["nadi_stream_retained_bytes"] == {("home", "s3"): 15_000, ("home", "s4"): 20_000}
    sizes, events = scraped["nadi_stream_bytes_per_second"], scraped["nadi_stream_events_per_second"]
    assert sizes["home", "s4"] == pytest.approx(100 * events["home", "s4"])
    assert all(rate > 0 for rate in sizes.values())


def test_groups(scraped: Samples) -> None:
    s3, s4, others = ("home", "g3", "home/s3"), ("home", "g4", "home/s4"), ("", OTHERS, OTHERS)
    assert scraped["nadi_reader_groups"] == {(): 5}
    assert scraped["nadi_reader_group_lag_bytes"] == {s3: 15_000, s4: 20_000, others: 15_000}
    assert scraped["nadi_reader_group_segments"] == {s3: 3, s4: 4, others: 3}
    assert scraped["nadi_reader_group_unassigned_segments"] == {s3: 3, s4: 4, others: 3}
    assert scraped["nadi_reader_group_readers"] == {("home", "g3"): 0, ("home", "g4"): 0}
    assert scraped["nadi_reader_group_lag_seconds"].keys() == {s3, s4, others}
    assert scraped["nadi_reader_group_lag_events"][s4] == pytest.approx(200, rel=0.05)


def test_the_server(scraped: Samples) -> None:
    assert scraped["nadi_scalings_total"] == {("split",): 0, ("merge",): 0}
    assert scraped["nadi_metrics_complete"] == {(): 1}
    assert 0 < scraped["nadi_metrics_gathering_seconds"][()] < 60
    assert scraped["process_resident_memory_bytes"][()] > 10_000_000
    assert scraped["nadi_unfinished_workflows"] == {(): 0}


def test_open_metrics_where_that_is_preferred(small: EmbeddedServer) -> None:
    accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
    answer = httpx.get(f"{small.rest_uri}/metrics", headers=accept, timeout=60)
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    parsed = openmetrics.text_string_to_metric_families(answer.text)  # type: ignore[no-untyped-call]
    families = {family.name for family in parsed}
    assert families >= set(MEANINGS) - {"nadi_retention_age_seconds"}, "nothing was truncated"


def test_unknown_lags_have_no_sample(server: EmbeddedServer, rest: httpx.Client, scope: str) -> None:
    async def make() -> None:
        cuts = [pb.StreamCut(streamInfo=pb.StreamInfo(scope=scope, stream="s"))]
        async with calls(server.controller_uri.removeprefix("tcp://")) as call:
            request = group_config("java", startingStreamCuts=cuts)
            request.scope = scope
            await call("createReaderGroup", request)

    body = {"streamName": "s", "scalingPolicy": {"type": "FIXED_NUM_SEGMENTS", "minSegments": 1}}
    rest.post(f"/v1/scopes/{scope}/streams", json=body).raise_for_status()
    asyncio.run(make())
    (lag,) = rest.get(f"/v1/scopes/{scope}/readergroups/java/lag").json()
    assert (lag["lag_bytes"], lag["lag_seconds"]) == (None, None)
    assert lag["why"]
    end = time.monotonic() + 60
    while (scope, "s") not in (scrape := samples(rest.get("/metrics").text)).get("nadi_stream_segments", {}):
        assert time.monotonic() < end, "metrics are at most a second old"
        time.sleep(0.1)
    assert not [labels for labels in scrape.get("nadi_reader_group_lag_bytes", {}) if labels[0] == scope]


async def test_a_storm_of_scrapes_is_one(server: EmbeddedServer) -> None:
    async with httpx.AsyncClient(base_url=server.rest_uri, timeout=60) as client:
        answers = await asyncio.gather(*(client.get("/metrics") for _ in range(40)))
    durations = [samples(answer.text)["nadi_metrics_gathering_seconds"][()] for answer in answers]
    assert len(set(durations)) < 20, "most scrapes shared the figures of others"
