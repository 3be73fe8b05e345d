"""A query's checkpoint mirrored in a byte stream: it is restored, and the query continues elsewhere."""

from __future__ import annotations

import json
import random
import shutil
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from typer.testing import CliRunner

from nadi.cli.app import app
from nadi.client.scan.connection import ConnectionSettings
from nadi.errors import ConflictError, InvalidArgumentError, NadiError, NotFoundError
from nadi.spark import mirror as module
from nadi.spark.connections import client_of
from nadi.spark.mirror import CheckpointMirror, all_mirrored, apply, encode, restore
from tests.spark.conftest import World
from tests.spark.queries import Home, Query
from tests.support.spark import with_settings

pytestmark = pytest.mark.spark


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def checkpoint(folder: Path, query: str = "q") -> Path:
    (folder / "offsets").mkdir(parents=True)
    (folder / "metadata").write_text(json.dumps({"id": query}))
    (folder / "offsets" / "0").write_text("first")
    return folder


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 3))])
def test_restored_folder_equals_mirrored_folder(home: Home, tmp_path: Path, seed: int, monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "MIB", 3000)
    chance, client = random.Random(seed), client_of(ConnectionSettings(home.uri))
    folder = checkpoint(tmp_path / "checkpoint")
    kept = CheckpointMirror(client.manager, "home", f"m{seed}", f"file://{folder}")
    for batch in range(1, 40):
        for _ in range(3):
            state = folder / "state" / str(chance.randrange(4)) / f"{chance.randrange(20)}.delta"
            state.parent.mkdir(parents=True, exist_ok=True)
            if state.exists() and chance.random() < 0.5:
                state.unlink()
            else:
                state.write_bytes(chance.randbytes(chance.choice([0, 10, 2000])))
        (folder / "offsets" / str(batch)).write_text(str(batch))
        (folder / "offsets" / f".{batch}.tmp").touch()
        if chance.random() < 0.2:
            kept = CheckpointMirror(client.manager, "home", f"m{seed}", str(folder))
        client.run(kept.keep())
        (folder / "offsets" / f".{batch}.tmp").unlink()
        if batch % 13 == 0:
            found = client.run(restore(client.manager, "home", f"m{seed}", str(tmp_path / f"restored-{batch}")))
            assert contents(tmp_path / f"restored-{batch}") == contents(folder)
            assert (found.batch, found.query_id, found.files) == (batch, "q", len(contents(folder)))
            size = sum(map(len, contents(folder).values()))
            assert found.end - found.start < 2 * size + 3000 + 20_000
            assert home.manager.cuts("home", f"checkpoint-m{seed}").head().positions == {0: found.start}


def test_second_query_and_older_checkpoint_are_rejected(home: Home, tmp_path: Path) -> None:
    client = client_of(ConnectionSettings(home.uri))
    folder = checkpoint(tmp_path / "one")
    first, second = (CheckpointMirror(client.manager, "home", "both", str(folder)) for _ in range(2))
    client.run(first.keep())
    client.run(second.keep())
    (folder / "offsets" / "1").write_text("second")
    with pytest.raises(NadiError):
        client.run(first.keep())
    client.run(second.keep())
    (folder / "offsets" / "1").unlink()
    for other in (folder, checkpoint(tmp_path / "two", "another")):
        with pytest.raises(ConflictError, match="batch 1 of query q"):
            client.run(CheckpointMirror(client.manager, "home", "both", str(other)).keep())
    with pytest.raises(InvalidArgumentError):
        client.run(CheckpointMirror(client.manager, "home", "both", str(tmp_path / "none")).keep())
    with pytest.raises(InvalidArgumentError):
        client.run(restore(client.manager, "home", "both", str(folder)))
    with pytest.raises(NotFoundError, match="home/nothing"):
        client.run(restore(client.manager, "home", "nothing", str(tmp_path / "x")))


def test_group_moves_after_the_mirror(home: Home, tmp_path: Path) -> None:
    """A restored query repeats the last batch in its mirror."""
    home.manager.create_stream("home", "grouped", 1)
    with home.manager.create_writer("home", "grouped") as writer:
        for _ in range(30):
            writer.write_event(bytes(92), "k")
    folder, client = checkpoint(tmp_path / "grouped"), client_of(ConnectionSettings(home.uri))
    options = {"groupId": "grouped", "mirror_checkpoint": str(folder), "mirror_name": "grouped"}
    query = Query(home, "grouped", maxOffsetsPerTrigger="10", **options)
    for batch in range(3):
        start = query.offsets[-1]
        end = query.reader.latestOffset(start, query.reader.getDefaultReadLimit())
        (folder / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{json.dumps(end)}")
        if batch:
            query.reader.commit(start)
        (lag,) = home.manager.reader_group_manager("home").lag("grouped")
        assert lag.lag_bytes == 3_000 - 1_000 * batch
        if batch:
            kept, _ = client.run(all_mirrored(client.manager, "home"))
            assert [one.batch for one in kept if one.name == "grouped"] == [batch], "the mirror is not before it"
        query.read(start, end)
        query.offsets.append(end)
    home.manager.create_stream("home", "copied", 1)
    other = Query(home, "copied", mirror_checkpoint=str(folder), mirror_name="copied")
    with pytest.raises(InvalidArgumentError, match="batch 2"):
        other.read(other.offsets[0], other.offsets[0])


def test_unwritable_folder_is_reported(home: Home, tmp_path: Path) -> None:
    client = client_of(ConnectionSettings(home.uri))
    client.run(CheckpointMirror(client.manager, "home", "kept", str(checkpoint(tmp_path / "one"))).keep())
    (tmp_path / "file").write_text("no folder")
    folder = str(tmp_path / "file" / "restored")
    command = ["spark", "checkpoint", "restore", "home", "kept", folder, "--controller", home.uri]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)
    assert "error: " in result.output
    assert "file" in result.output


def test_damaged_mirror_raises_error() -> None:
    written = bytearray(encode({"a": b"abc"}, ()))
    written[-1] ^= 1
    with pytest.raises(NadiError, match="file a"):
        apply(bytes(written), {})
    with pytest.raises(NadiError, match=r"\b0\b"):
        apply(b"\0\0", {})


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"streaming.queryEvolution.enableSourceEvolution": "true"}, ["_1", "B2"]),
        pytest.param({"streaming.offsetLog.formatVersion": "2"}, [None, None], marks=pytest.mark.slow),
    ],
)
def test_query_with_named_sources_continues_from_mirror(
    world: World, tmp_path: Path, settings: dict[str, str], names: list[str | None], request: Any
) -> None:
    """The last of the sources mirrors, and the next run has only the mirror and new events."""
    mirror = f"named-{request.node.callspec.id.split('-')[0]}"
    inputs = [f"{mirror}-{number}" for number in range(len(names))]
    for stream in (*inputs, f"{mirror}-out"):
        world.manager.create_stream("home", stream, 1)

    def run(folder: Path) -> None:
        mirroring = {"mirror_checkpoint": str(folder), "mirror_name": mirror}
        frames = []
        for stream, name in zip(inputs, names, strict=True):
            reader = world.spark.readStream.format("nadi")
            reader = reader if name is None else reader.name(name)
            more = mirroring if stream == inputs[-1] else {}
            frames.append(reader.options(**world.options(stream, **more)).load().select("event"))
        rows = reduce(DataFrame.union, frames)
        writer = rows.writeStream.format("nadi").options(**world.options(f"{mirror}-out"))
        writer.option("checkpointLocation", str(folder)).trigger(availableNow=True).start().awaitTermination()

    with with_settings(world.spark, {f"spark.sql.{name}": value for name, value in settings.items()}):
        for life in range(2):
            folder = tmp_path / str(life)
            for stream in inputs:
                with world.manager.create_writer("home", stream) as writer:
                    writer.write_batch([f"{stream}:{life}:{number}".encode() for number in range(5)], ["k"] * 5)
            run(folder)
            assert (folder / "offsets" / str(life)).read_text().startswith("v2\n")
            shutil.rmtree(folder)  # with all that was not mirrored
            client = client_of(ConnectionSettings(world.uri))
            assert client.run(restore(client.manager, "home", mirror, str(tmp_path / str(life + 1)))).batch == life
    end = world.manager.stream_info("home", f"{mirror}-out").tail
    written = [event.data.decode() for event in world.manager.read_events("home", f"{mirror}-out", end=end)]
    assert sorted(written) == sorted(
        f"{stream}:{life}:{number}" for stream in inputs for life in range(2) for number in range(5)
    )


def test_folder_older_than_mirror_is_rejected(home: Home, tmp_path: Path) -> None:
    """The query continued elsewhere, and planned another batch of the same number."""
    client = client_of(ConnectionSettings(home.uri))
    left, other = checkpoint(tmp_path / "left"), checkpoint(tmp_path / "other")
    (left / "offsets" / "1").write_text("the batch of a driver that was cut off")
    (other / "offsets" / "1").write_text("the batch that was run")
    client.run(CheckpointMirror(client.manager, "home", "left", str(other)).keep())
    for step in ("begin", "keep"):
        with pytest.raises(ConflictError, match="batch 1 of query q"):
            client.run(getattr(CheckpointMirror(client.manager, "home", "left", str(left)), step)())
    client.run(CheckpointMirror(client.manager, "home", "left", str(other)).begin())


def test_checkpoint_without_state_is_rejected(home: Home, tmp_path: Path) -> None:
    client, folder = client_of(ConnectionSettings(home.uri)), checkpoint(tmp_path / "driver")
    (folder / "state" / "0" / "_metadata").mkdir(parents=True)
    (folder / "state" / "0" / "_metadata" / "metadata").touch()
    kept = CheckpointMirror(client.manager, "home", "elsewhere", str(folder))
    client.run(kept.keep())
    (folder / "commits").mkdir()
    (folder / "commits" / "0").touch()
    (folder / "offsets" / "1").touch()
    with pytest.raises(InvalidArgumentError, match="'mirror_checkpoint'"):
        client.run(kept.keep())
    (folder / "state" / "0" / "0").mkdir()
    (folder / "state" / "0" / "0" / "1.delta").touch()
    client.run(kept.keep())


class Lives:
    """A query that repeatedly runs to the tail, loses its checkpoint, and is restored, under Spark's default
    settings."""

    def __init__(self, world: World, name: str, folder: Path) -> None:
        self.world, self.name, self.mirror, self.folder = world, name, name, folder
        for stream in ("in", "out"):
            world.manager.create_stream("home", f"{name}-{stream}", 1)

    def write(self, *hours: int) -> None:
        with self.world.manager.create_writer("home", f"{self.name}-in") as writer:
            for hour in hours:
                writer.write_event(b"%d" % (hour * 3600), "k")

    def hours(self) -> Any:
        mirroring = {"mirror_checkpoint": str(self.folder), "mirror_name": self.mirror}
        rows = self.world.read_stream(f"{self.name}-in", **mirroring)
        return rows.selectExpr("timestamp_seconds(INT(STRING(event))) hour").withWatermark("hour", "1 minute")

    def run(self, rows: DataFrame) -> None:
        options = self.world.options(f"{self.name}-out")
        writer = rows.writeStream.format("nadi").options(**options).option("checkpointLocation", str(self.folder))
        writer.trigger(availableNow=True).start().awaitTermination()

    def lose(self) -> int:
        """Delete the checkpoint; return the last mirrored batch."""
        shutil.rmtree(self.folder)
        client = client_of(ConnectionSettings(self.world.uri))
        return client.run(restore(client.manager, "home", self.mirror, str(self.folder))).batch

    def written(self) -> list[str]:
        end = self.world.manager.stream_info("home", f"{self.name}-out").tail
        return [event.data.decode() for event in self.world.manager.read_events("home", f"{self.name}-out", end=end)]


def counted(rows: DataFrame) -> DataFrame:
    return rows.groupBy(F.window("hour", "5 minutes")).count().selectExpr(f"{HOUR} AS event")


def in_sessions(rows: DataFrame) -> DataFrame:
    sessions = rows.groupBy(F.session_window("hour", "5 minutes").alias("window"), F.hour("hour")).count()
    return sessions.selectExpr(f"{HOUR} AS event")


def joined(rows: DataFrame) -> DataFrame:
    """Join each hour with events up to a minute later: none, which is known once the watermark has passed it."""
    others = rows.selectExpr("hour AS other")
    on = F.expr("DATE(other) = DATE(hour) AND other > hour AND other < hour + INTERVAL 1 MINUTE")
    return rows.join(others, on, "left_outer").selectExpr("CONCAT(UNIX_TIMESTAMP(hour) DIV 3600, ':1') AS event")


HOUR = "CONCAT(UNIX_TIMESTAMP(window.start) DIV 3600, ':', count)"
ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
NEWEST = {
    "offsetLog.formatVersion": "2",
    "stateStore.providerClass": ROCKS,
    "stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "stateStore.checkpointFormatVersion": "2",
}
PLAIN_FILES = {"checkpointFileManagerClass": None, "checkpoint.fileChecksum.enabled": None}  # Spark's, not `tuned`'s


@pytest.mark.parametrize(
    ("work", "settings"),
    [
        pytest.param(counted, PLAIN_FILES, marks=pytest.mark.slow),
        pytest.param(in_sessions, {"offsetLog.formatVersion": "2"}, marks=pytest.mark.slow),
        (joined, NEWEST),
    ],
)
def test_a_batch_without_rows_after_the_mirror_is_restored(
    world: World, tmp_path: Path, work: Any, settings: dict[str, str | None]
) -> None:
    lives = Lives(world, f"silent-{work.__name__.replace('_', '-')}", tmp_path / "checkpoint")
    with with_settings(world.spark, {f"spark.sql.streaming.{name}": value for name, value in settings.items()}):
        for life, hours in enumerate([(1, 3), (5,)]):
            lives.write(*hours)
            lives.run(work(lives.hours()))
            assert lives.lose() == 2 * life + 1, "a batch without rows follows each with rows"
    assert sorted(lives.written()) == ["1:1", "3:1"], "5 is open"


@pytest.mark.slow
def test_a_batch_without_rows_is_mirrored_if_the_query_was_killed_before(world: World, tmp_path: Path) -> None:
    """Spark runs it at the next start and calls the source for nothing: neither tasks, nor a commit."""
    lives, client = Lives(world, "killed-before", tmp_path / "checkpoint"), client_of(ConnectionSettings(world.uri))
    lives.write(1, 3)
    lives.run(counted(lives.hours()))
    assert lives.lose() == 1, "planned, and not committed"
    shutil.copytree(lives.folder, tmp_path / "before")
    (tmp_path / "before" / "offsets" / "1").unlink()
    lives.mirror = "killed-before-2"
    client.run(CheckpointMirror(client.manager, "home", lives.mirror, str(tmp_path / "before")).keep())
    lives.run(counted(lives.hours()))
    assert lives.lose() == 1
    lives.write(5)
    lives.run(counted(lives.hours()))
    assert sorted(lives.written()) == ["1:1", "3:1"]


@pytest.mark.slow  # a minute each
@pytest.mark.timeout(300)
@pytest.mark.parametrize("provider", ["HDFSBackedStateStoreProvider", "RocksDBStateStoreProvider"])
def test_stateful_query_continues_elsewhere(world: World, tmp_path: Path, provider: str) -> None:
    name, written = f"known-{provider[:4].lower()}", 0
    world.manager.create_stream("home", name, 2)
    world.manager.create_stream("home", f"{name}-out", 1)
    state = {
        "spark.sql.streaming.stateStore.providerClass": f"org.apache.spark.sql.execution.streaming.state.{provider}"
    }

    def started(folder: Path) -> Any:
        rows = world.read_stream(name, mirror_checkpoint=str(folder), mirror_name=name, maxOffsetsPerTrigger="200")
        writer = (
            rows.select("event").dropDuplicates().writeStream.format("nadi").options(**world.options(f"{name}-out"))
        )
        return writer.option("checkpointLocation", str(folder)).start()

    for life in range(3):
        written += 150
        with world.manager.create_writer("home", name) as into:
            for number in range(written):  # events of earlier runs again: only the state knows
                into.write_event(b"%d" % number, str(number))
        with with_settings(world.spark, state):
            query = started(tmp_path / str(life))
            query.processAllAvailable()
            query.stop()
        shutil.rmtree(tmp_path / str(life))  # with all that was not mirrored
        result = CliRunner().invoke(
            app,
            ["spark", "checkpoint", "restore", "home", name, str(tmp_path / str(life + 1)), "--controller", world.uri],
        )
        assert result.exit_code == 0, result.output
        assert "files" in result.output
    result = CliRunner().invoke(app, ["spark", "checkpoint", "list", "home", "--json", "--controller", world.uri])
    assert [one["name"] for one in json.loads(result.output) if one["name"] == name]
    end = world.manager.stream_info("home", f"{name}-out").tail
    events = [int(event.data) for event in world.manager.read_events("home", f"{name}-out", end=end)]
    assert sorted(events) == list(range(written)), "a batch came twice, or its state was lost"
