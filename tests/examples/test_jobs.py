"""The examples' Spark jobs, stopped halfway and restarted, compared with plain computations."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import nadi
from examples.log_patterns import job as log_job
from examples.log_patterns.checker import PATTERNS, read_and_compare
from examples.log_patterns.lines import generated
from examples.log_patterns.producer import LINES, write
from examples.programs import ROOT
from examples.returns import checker as returns_checker
from examples.returns import job as returns_job
from examples.returns.producer import create_streams, some_lines
from examples.returns.producer import produce as sell
from examples.running import Place
from examples.sensor_slices import bookmarker, processor, waves
from examples.sensor_slices import checker as slices_checker
from examples.sensor_slices import producer as sensors_producer
from tests.support.spark import spark_session, with_settings

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]
Places = Callable[[str], Place]


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with spark_session() as session, with_settings(session, {"spark.sql.session.timeZone": "UTC"}):
        yield session


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    """Creates a scope of that name, on one server for all tests."""
    with (
        nadi.embedded(tmp_path_factory.mktemp("server")) as server,
        nadi.StreamManager(server.controller_uri) as manager,
    ):

        def make(scope: str) -> Place:
            manager.create_scope(scope)
            return Place(manager, server.controller_uri, scope, tmp_path_factory.mktemp(scope))

        yield make


@pytest.mark.slow  # half a minute
def test_errors_are_counted_through_a_restart(spark: Any, places: Places) -> None:
    here = places("log-patterns")
    here.manager.create_stream(here.scope, LINES, 2)
    here.manager.create_stream(here.scope, PATTERNS, 2)
    lines = list(generated(40, 50))
    count = 0
    for some in (lines[: len(lines) // 2], lines[len(lines) // 2 :]):
        with here.manager.create_writer(here.scope, LINES) as writer:
            write(writer, some)
        query = log_job.count_live(spark, here.controller, here.scope, here.folder / "checkpoint")
        try:
            query.processAllAvailable()
        finally:
            query.stop()
        assert len(here.events(PATTERNS)) > count
        count = len(here.events(PATTERNS))
    verdict = read_and_compare(here.manager, here.scope)
    assert verdict.is_right, verdict
    assert verdict.too_late > 0


@pytest.mark.slow
def test_returns_find_their_sales_through_a_restart(spark: Any, places: Places) -> None:
    here = places("returns")
    create_streams(here.manager, here.scope)
    here.manager.create_stream(here.scope, returns_checker.PAIRS, 2)
    lines = some_lines(3_000)
    count = 0
    for some in (lines[:1_500], lines[1_500:]):
        sell(here.manager, here.scope, some, 0)
        query = returns_job.join_live(spark, here.controller, here.scope, here.folder / "checkpoint")
        try:
            query.processAllAvailable()
        finally:
            query.stop()
        assert len(here.events(returns_checker.PAIRS)) > count
        count = len(here.events(returns_checker.PAIRS))
    verdict = returns_checker.read_and_compare(here.manager, here.scope)
    assert verdict.is_right, verdict
    assert 0 < verdict.matched < verdict.returns


def test_slices_are_exact_through_a_split_and_a_restart(spark: Any, places: Places) -> None:
    here = places("sensor-slices")
    sensors_producer.create_streams(here.manager, here.scope)
    finders = bookmarker.find_live, processor.process_live
    for readings, queries in ((range(340), finders[:1]), (range(340, 680), finders)):  # segments are split within each
        sensors_producer.produce(here.manager, here.scope, readings, 0)
        for find in queries:
            query = find(spark, here.controller, here.scope, here.folder / find.__name__)
            try:
                query.processAllAvailable()
            finally:
                query.stop()
    truth = waves.truth(waves.sensors(), 680)
    verdict = slices_checker.compare(truth, here.events(sensors_producer.AGGREGATES))
    assert verdict.is_right, verdict
    assert any(one.first < 340 <= one.last for one in truth), "a slice in two runs of the query"
    assert any(one.first < 170 <= one.last for one in truth), "a slice in two segments"


def test_the_operator_of_the_guide(spark: Any, places: Places) -> None:
    (example,) = [code for code in python_of("spark.md") if "def find_rises" in code]
    here = places("guide")
    for stream in ("meters", "rises"):
        here.manager.create_stream(here.scope, stream, 2)
    home = {"controller": here.controller, "scope": here.scope}
    names = {"rows": spark.readStream.format("nadi").options(**home, stream="meters").load()}
    exec(compile(example, "docs/spark.md", "exec"), names)
    chance, expected, last = random.Random(1), [], dict.fromkeys("abc", 0.0)
    for _ in range(2):
        with here.manager.create_writer(here.scope, "meters") as writer:
            for _ in range(300):
                meter, wh = chance.choice("abc"), chance.randrange(1, 100) / 2
                writer.write_event(json.dumps({"meter": meter, "wh": wh}).encode(), routing_key=meter)
                expected += [(meter, wh)] if 0 < last[meter] < wh else []
                last[meter] = wh
        writing = names["rises"].writeStream.format("nadi").options(**home, stream="rises")
        query = writing.option("checkpointLocation", str(here.folder / "checkpoint")).start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()
    found = [json.loads(event) for event in here.events("rises")]
    for meter in "abc":
        mine = [one["wh"] for one in found if one["meter"] == meter]
        assert mine == [wh for one, wh in expected if one == meter]


def python_of(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)
