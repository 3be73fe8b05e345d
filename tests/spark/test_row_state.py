"""`transformWithState` on rows: events of a key in order over splits and merges, and the state read from the
checkpoint, with the newest formats of checkpoint and state."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from nadi.spark import in_order
from tests.support.spark import with_settings

from .conftest import World
from .scaled import ScaledStream, check_once_in_order

pytestmark = pytest.mark.spark
_STATE = "spark.sql.streaming.stateStore."
NEWEST = {
    "spark.sql.streaming.offsetLog.formatVersion": "2",
    f"{_STATE}providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    f"{_STATE}rocksdb.changelogCheckpointing.enabled": "true",
    f"{_STATE}checkpointFormatVersion": "2",
    f"{_STATE}encodingFormat": "avro",
    f"{_STATE}rowChecksum.enabled": "true",
}
READ = "split(CAST(event AS string), ':')[0] AS key", "CAST(split(CAST(event AS string), ':')[1] AS long) AS number"


def with_previous() -> StatefulProcessor:
    class Previous(StatefulProcessor):  # in a function: Spark's workers can't import tests
        """Returns each number with the previous one of its key."""

        def init(self, handle: StatefulProcessorHandle) -> None:
            self._last = handle.getValueState("last", "number long, seen long")

        def handleInputRows(self, key: Any, rows: Any, timers: Any) -> Iterator[Row]:
            last, seen = self._last.get() or (None, 0)
            for row in in_order(rows):
                yield Row(key=key[0], number=row.number, previous=last)
                last, seen = row.number, seen + 1
            self._last.update((last, seen))

    return Previous()


def test_row_state_follows_each_key_in_order_in_the_newest_formats(world: World, tmp_path: Path) -> None:
    stream = ScaledStream(world.manager, "row-state", 7)
    found: list[Row] = []
    rows = world.read_stream("row-state", max_bytes_per_trigger="1500").selectExpr(*READ, "segment_id", "offset")
    states = rows.groupBy("key").transformWithState(
        with_previous(), "key string, number long, previous long", "append", "none"
    )
    with with_settings(world.spark, NEWEST):
        for _ in range(2):
            stream.live(2, 40)
            query = states.writeStream.foreachBatch(lambda batch, _: found.extend(batch.collect())).outputMode("append")
            query.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start().awaitTermination()
        saved = world.spark.read.format("statestore").option("stateVarName", "last").load(str(tmp_path)).collect()
    check_once_in_order((b"%s:%d" % (row.key.encode(), row.number) for row in found), stream.written)
    numbers = defaultdict[str, list[int | None]](lambda: [None])
    for row in found:
        assert row.previous == numbers[row.key][-1]
        numbers[row.key].append(row.number)
    assert {row.key.key: (row.value.number, row.value.seen) for row in saved} == {
        key: (all_of_key[-1], len(all_of_key) - 1) for key, all_of_key in numbers.items()
    }
    logs = [*(tmp_path / "offsets").glob("[0-9]*"), *(tmp_path / "commits").glob("[0-9]*")]
    assert {log.read_text().splitlines()[0] for log in logs} == {"v2"}
    changes = [file.name for file in (tmp_path / "state/0/0").glob("*.changelog")]
    assert changes
    assert all("_" in name for name in changes), "the second format has a unique id in each name"
