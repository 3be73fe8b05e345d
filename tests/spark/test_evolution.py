"""A query restarts from its checkpoint after its named sources were added, removed or reordered."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from tests.support.spark import with_settings

from .conftest import World
from .scaled import ScaledStream, check_once_in_order

pytestmark = pytest.mark.spark
EVOLUTION = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
SOURCES = ("attic", "barn", "cellar")
CHANGES = [("attic", "barn"), ("cellar", "barn", "attic"), ("cellar", "attic")]


@pytest.fixture(autouse=True)
def _evolution(world: World) -> Iterator[None]:
    with with_settings(world.spark, {EVOLUTION: "true"}):
        yield


def run(world: World, target: str, checkpoint: Path, *sources: str, **options: str) -> None:
    def read(name: str) -> DataFrame:
        given = world.options(f"{target}-{name}", **{key: value.format(name) for key, value in options.items()})
        frame: DataFrame = world.spark.readStream.format("nadi").options(**given).name(name).load()
        return frame.selectExpr(f"concat('{name}', CAST(event AS string)) AS event", "stream AS routing_key")

    rows = reduce(DataFrame.union, map(read, sources))
    writer = rows.writeStream.format("nadi").options(**world.options(target))
    writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()


def written(world: World, target: str, name: str) -> list[bytes]:
    """Return the events that the target has of a source."""
    end = world.manager.cuts("home", target).tail()
    events = (event.data for event in world.manager.read_events("home", target, end=end))
    return [event.removeprefix(name.encode()) for event in events if event.startswith(name.encode())]


def live(streams: dict[str, Any]) -> None:
    for stream in streams.values():
        stream.live(1, 20)


def test_added_removed_and_reordered_sources_continue_where_they_stopped(world: World, tmp_path: Path) -> None:
    world.manager.create_stream("home", "changed", 2)
    streams = {name: ScaledStream(world.manager, f"changed-{name}", seed) for seed, name in enumerate(SOURCES)}
    for sources in CHANGES:
        live(streams)
        run(world, "changed", tmp_path, *sources)
    check_once_in_order(written(world, "changed", "attic"), streams["attic"].written)
    check_once_in_order(written(world, "changed", "cellar"), streams["cellar"].written)
    check_once_in_order(written(world, "changed", "barn"), streams["barn"].written * 2 // 3)


@pytest.mark.slow
def test_removed_source_with_output_continues_when_it_is_added_again(world: World, tmp_path: Path) -> None:
    """Without it the source would begin again at the head: Spark soon forgets where a removed source stopped."""
    world.manager.create_stream("home", "again", 2)
    streams = {name: ScaledStream(world.manager, f"again-{name}", seed) for seed, name in enumerate(SOURCES[:2])}
    resumed = {"groupId": "again-{}", "output": "again", "startAt": "last-committed"}
    for sources in [("attic", "barn"), ("attic",), ("barn", "attic")]:
        live(streams)
        run(world, "again", tmp_path, *sources, **resumed)
    for name, stream in streams.items():
        check_once_in_order(written(world, "again", name), stream.written)
