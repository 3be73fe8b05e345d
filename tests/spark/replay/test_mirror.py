"""A query's checkpoint in a byte stream: what is mirrored is restored, and a query goes on from it elsewhere."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nadi.cli.app import app
from nadi.client.scan.connection import Connection
from nadi.errors import ConflictError, InvalidArgumentError, NadiError, NotFoundError
from nadi.spark.checkpoints import mirror as module
from nadi.spark.checkpoints.log import apply, encode
from nadi.spark.checkpoints.mirror import CheckpointMirror, restore
from nadi.spark.connections import client_of
from nadi.spark.options.read import ReadOptions
from nadi.spark.options.table import Use
from tests.spark.conftest import World
from tests.spark.queries import Home, Query

pytestmark = pytest.mark.spark


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def checkpoint(folder: Path, query: str = "q") -> Path:
    (folder / "offsets").mkdir(parents=True)
    (folder / "metadata").write_text(json.dumps({"id": query}))
    (folder / "offsets" / "0").write_text("first")
    return folder


@pytest.mark.parametrize("seed", range(3))
def test_what_is_restored_is_what_was_mirrored(home: Home, tmp_path: Path, seed: int, monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "MIB", 3000)
    chance, client = random.Random(seed), client_of(Connection(home.uri))
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


def test_two_queries_and_older_checkpoints_are_refused(home: Home, tmp_path: Path) -> None:
    client = client_of(Connection(home.uri))
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
        with pytest.raises(ConflictError, match="has batch 1 of query q"):
            client.run(CheckpointMirror(client.manager, "home", "both", str(other)).keep())
    with pytest.raises(InvalidArgumentError, match="must be its checkpointLocation"):
        client.run(CheckpointMirror(client.manager, "home", "both", str(tmp_path / "none")).keep())
    with pytest.raises(InvalidArgumentError, match="is there already"):
        client.run(restore(client.manager, "home", "both", str(folder)))
    with pytest.raises(NotFoundError, match="'nothing'"):
        client.run(restore(client.manager, "home", "nothing", str(tmp_path / "x")))


def test_a_group_moves_once_the_mirror_has_what_was_committed(home: Home, tmp_path: Path) -> None:
    """A query that is restored runs the batch again that its mirror has last."""
    home.manager.create_stream("home", "grouped", 1)
    with home.manager.create_writer("home", "grouped") as writer:
        for _ in range(30):
            writer.write_event(bytes(92), "k")
    folder = checkpoint(tmp_path / "grouped")
    options = {"groupId": "grouped", "mirror_checkpoint": str(folder), "mirror_name": "grouped"}
    query = Query(home, "grouped", maxOffsetsPerTrigger="10", **options)
    for batch in range(3):
        start = query.offsets[-1]
        end = query.reader.latestOffset(start, query.reader.getDefaultReadLimit())
        (folder / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{json.dumps(end)}")
        if batch:
            query.reader.commit(start)
        (lag,) = home.manager.reader_group_manager("home").lag("grouped")
        assert lag.bytes_behind == 3_000 - 1_000 * max(batch - 1, 0), "the mirror is before the batch that ended here"
        query.read(start, end)
        query.offsets.append(end)
    (lag,) = home.manager.reader_group_manager("home").lag("grouped")
    assert lag.bytes_behind == 1_000
    home.manager.create_stream("home", "copied", 1)
    other = Query(home, "copied", mirror_checkpoint=str(folder), mirror_name="copied")
    with pytest.raises(InvalidArgumentError, match="is another query's checkpoint: its batch 2 ends elsewhere"):
        other.read(other.offsets[0], other.offsets[0])


def test_a_folder_that_cant_be_written_is_told(home: Home, tmp_path: Path) -> None:
    client = client_of(Connection(home.uri))
    client.run(CheckpointMirror(client.manager, "home", "kept", str(checkpoint(tmp_path / "one"))).keep())
    (tmp_path / "file").write_text("no folder")
    folder = str(tmp_path / "file" / "restored")
    command = ["spark", "checkpoint", "restore", "home", "kept", folder, "--controller", home.uri]
    told = CliRunner().invoke(app, command)
    assert told.exit_code == 1
    assert isinstance(told.exception, SystemExit)
    assert "error: " in told.output
    assert "file" in told.output


def test_damage_is_told() -> None:
    written = bytearray(encode({"a": b"abc"}, ()))
    written[-1] ^= 1
    with pytest.raises(NadiError, match="file a is damaged"):
        apply(bytes(written), {})
    with pytest.raises(NadiError, match="damaged at byte 0"):
        apply(b"\0\0", {})


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"mirror_checkpoint": "/x"}, "'mirror_name' is missing"),
        ({"mirror_name": "x"}, "'mirror_checkpoint' is missing"),
        ({"mirror_checkpoint": "s3a://b/x", "mirror_name": "x"}, "only a folder of the driver's machine"),
    ],
)
def test_options_that_make_no_sense(given: dict[str, str], told: str) -> None:
    with pytest.raises(InvalidArgumentError, match=told):
        ReadOptions.from_spark({"scope": "home", "stream": "a", **given}, Use.READ_STREAM)


@pytest.mark.slow  # a minute each
@pytest.mark.timeout(300)
@pytest.mark.parametrize("provider", ["HDFSBackedStateStoreProvider", "RocksDBStateStoreProvider"])
def test_a_query_with_state_goes_on_elsewhere(world: World, tmp_path: Path, provider: str) -> None:
    name, written = f"known-{provider[:4].lower()}", 0
    world.manager.create_stream("home", name, 2)
    world.manager.create_stream("home", f"{name}-out", 1)
    world.spark.conf.set(
        "spark.sql.streaming.stateStore.providerClass",
        f"org.apache.spark.sql.execution.streaming.state.{provider}",
    )

    def started(folder: Path) -> Any:
        rows = world.read_stream(name, mirror_checkpoint=str(folder), mirror_name=name, maxOffsetsPerTrigger="200")
        writer = (
            rows.select("event").dropDuplicates().writeStream.format("nadi").options(**world.options(f"{name}-out"))
        )
        return writer.option("checkpointLocation", str(folder)).start()

    for life in range(3):
        written += 150
        with world.manager.create_writer("home", name) as into:
            for number in range(written):  # again what came in the lives before: only the state knows
                into.write_event(b"%d" % number, str(number))
        query = started(tmp_path / str(life))
        query.processAllAvailable()
        query.stop()
        shutil.rmtree(tmp_path / str(life))  # with all that was not mirrored
        told = CliRunner().invoke(
            app,
            ["spark", "checkpoint", "restore", "home", name, str(tmp_path / str(life + 1)), "--controller", world.uri],
        )
        assert told.exit_code == 0, told.output
        assert "files" in told.output
    told = CliRunner().invoke(app, ["spark", "checkpoint", "list", "home", "--json", "--controller", world.uri])
    assert [one["name"] for one in json.loads(told.output) if one["name"] == name]
    end = world.manager.stream_info("home", f"{name}-out").tail
    events = [int(event.data) for event in world.manager.read_events("home", f"{name}-out", end=end)]
    assert sorted(events) == list(range(written)), "a batch came twice, or its state was lost"
