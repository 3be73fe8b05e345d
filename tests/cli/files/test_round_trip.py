"""`nadi import` restores what `nadi export` writes: the same events with their keys, ordered within segments."""

from __future__ import annotations

import importlib.util
import os
import random
import subprocess
import sys
from collections import defaultdict
from contextlib import closing
from pathlib import Path

import fastavro
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import nadi
from nadi.cli.files import _replacing, avro, parquet
from nadi.errors import InvalidArgumentError
from nadi.limits import MIB
from nadi.model.keyspace import key_position
from tests.cli.test_streams import Shell

FORMATS = ("jsonl", "parquet", "avro")


@pytest.fixture(scope="module")
def written(manager: nadi.StreamManager) -> list[bytes]:
    """Events of all sizes in a stream that is split meanwhile; each starts with its key and its number."""
    chance = random.Random(7)
    manager.create_stream("home", "meters", 3)
    events = []
    with manager.create_writer("home", "meters") as writer:
        for number in range(600):
            key = f"{chance.randrange(12)}"
            event = f"{key}:{number}:".encode() + chance.randbytes(chance.choice([0, 1, 100, 3000]))
            events.append(event)
            writer.write_event(event, key)
            if number == 300:
                writer.flush()
                first = manager.current_segments("home", "meters")[0]
                middle = (first.low + first.high) / 2
                halves = [(first.low, middle), (middle, first.high)]
                manager.scale_stream("home", "meters", [first.segment_id], halves)
        writer.write_event(b"")
    return [*events, b""]


def by_segment(manager: nadi.StreamManager, stream: str) -> dict[int, list[bytes]]:
    events: defaultdict[int, list[bytes]] = defaultdict(list)
    with manager.create_reader("home", stream, end=manager.cuts("home", stream).tail()) as reader:
        for segment, block in reader:
            events[segment] += block.events()
    return events


@pytest.mark.parametrize("kind", FORMATS)
def test_import_restores_exported_events(
    shell: Shell,
    manager: nadi.StreamManager,
    written: list[bytes],
    tmp_path: Path,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parquet, "_GROUP_BYTES", 50_000)
    file = tmp_path / f"meters.{kind}"
    size = sum(map(len, written))
    done = shell.run("export", "home", "meters", str(file))
    assert done.stderr.replace("\n", "") == f"exported {len(written):,} events, {size:,} bytes to {file}"
    assert [path.name for path in tmp_path.iterdir()] == [file.name]
    done = shell.run("import", "home", f"again-{kind}", str(file), "--create", "2")
    assert done.stderr == f"wrote {len(written):,} events, {size:,} bytes\n"
    exported, imported = by_segment(manager, "meters"), by_segment(manager, f"again-{kind}")
    assert sorted(event for events in imported.values() for event in events) == sorted(written)
    for segment, events in exported.items():
        expected = set(events)
        (target,) = [number for number, stored in imported.items() if expected <= set(stored)]
        assert [event for event in imported[target] if event in expected] == events, f"order of segment {segment}"
    if kind == "parquet":
        assert pq.ParquetFile(file).num_row_groups >= 5  # at least one per segment
        about = pq.ParquetFile(file).schema_arrow.metadata
        assert about[b"nadi.stream"] == b"meters"


@pytest.mark.parametrize("kind", FORMATS)
def test_export_of_a_slice_with_keys(shell: Shell, manager: nadi.StreamManager, tmp_path: Path, kind: str) -> None:
    stream = f"keyed-{kind}"
    shell.run("write", "home", stream, "--create", "1", stdin=b'{"m": "oven", "n": 1}\n{"m": "lamp"}\n{"x": 1}\nlast\n')
    cuts = manager.cuts("home", stream)
    manager.slices("home").create(f"{stream}-first", cuts.head(), cuts.after(cuts.head(), 3))
    file = tmp_path / "some"
    options = "--slice", f"{stream}-first", "--key-field", "m", "--format", kind
    shell.run("export", "home", stream, str(file), *options)
    shell.run("import", "home", f"{stream}-again", str(file), "--create", "8", "--format", kind, "--transaction")
    imported = by_segment(manager, f"{stream}-again")
    segments = manager.current_segments("home", f"{stream}-again")

    def segment_of(key: str) -> int:
        return next(piece.segment_id for piece in segments if piece.low <= key_position(key) < piece.high)

    assert sum(map(len, imported.values())) == 3
    assert b'{"m": "oven", "n": 1}' in imported[segment_of("oven")]
    assert b'{"m": "lamp"}' in imported[segment_of("lamp")]
    assert b'{"x": 1}' in imported[segment_of("0.#epoch.0")]
    shell.run("import", "home", f"{stream}-again", str(file), "--format", kind, "--key", "all", "--quiet")
    assert len(by_segment(manager, f"{stream}-again")[segment_of("all")]) >= 3
    assert "--force" in shell.run("export", "home", stream, str(file), "--format", kind, code=2).stderr
    shell.run("export", "home", stream, str(file), "--format", kind, "--force", "--from", "tail", "--quiet")
    assert shell.run("import", "home", stream, str(file), "--format", kind).stderr == "wrote 0 events, 0 bytes\n"


def test_import_of_the_output_of_read(shell: Shell, manager: nadi.StreamManager, tmp_path: Path) -> None:
    shell.run("write", "home", "read", "--create", "1", stdin=b'"quoted" \\ \xc3\xa9\n\xff\n')
    file = tmp_path / "read.ndjson"
    file.write_text(shell.run("read", "home", "read", "--json").stdout)
    shell.run("import", "home", "read", str(file), "--quiet")
    (events,) = by_segment(manager, "read").values()
    assert events == [b'"quoted" \\ \xc3\xa9', b"\xff"] * 2


def test_import_of_foreign_parquet_files(shell: Shell, manager: nadi.StreamManager, tmp_path: Path) -> None:
    manager.create_stream("home", "others", 1)
    file = tmp_path / "own.parquet"
    pq.write_table(pa.table({"event": ["a", "b"], "more": [1, 2]}), file)
    shell.run("import", "home", "others", str(file))
    assert by_segment(manager, "others") == {0: [b"a", b"b"]}
    for number, (kind, values) in enumerate(
        (
            (pa.dictionary(pa.int32(), pa.string()), ["a", "b"]),
            (pa.dictionary(pa.int8(), pa.binary()), [b"a", b"b"]),
            (pa.binary(1), [b"a", b"b"]),
            (pa.large_binary(), [b"a", b"b"]),
            (pa.string_view(), ["a", "b"]),
            (pa.json_(), ["a", "b"]),
        )
    ):
        columns = {"event": pa.array(values, kind), "key": pa.nulls(2), "segment_id": pa.nulls(2)}
        pq.write_table(pa.table(columns), file)
        shell.run("import", "home", f"odd-{number}", str(file), "--create", "1")
        assert by_segment(manager, f"odd-{number}") == {0: [b"a", b"b"]}, kind
    no_text = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers())
    for table, named in (
        (pa.table({"value": [b"a"]}), "value"),
        (pa.table({"event": [1]}), "int64"),
        (pa.table({"event": [b"a"], "segment_id": ["x"]}), "int64"),
        (pa.table({"event": [b"a", None]}), "row 2"),
        (pa.table({"event": [b"a"], "key": [7]}), "column `key`"),
        (pa.table([pa.array(["a"]), pa.array(["b"])], names=["event", "event"]), "`event`"),
        (pa.table({"event": no_text}), "UTF-8"),
        (pa.table({"event": ["a"], "key": no_text}), "UTF-8"),
    ):
        pq.write_table(table, file)
        assert named in shell.run("import", "home", "others", str(file), code=2).stderr.replace("\n", " ")
    for name, content, named in (
        ("x.parquet", b"no parquet", "Parquet"),
        ("x.avro", b"no avro", "Avro"),
        ("x.jsonl", b'{"text": "ok", "offset": "any"}\n{"text": 1}\n', "line 2 of"),
        ("y.jsonl", b'{"offset": 1}\n', "`nadi write`"),
        ("z.jsonl", b'{"base64": "?"}\n', "line 1 of"),
        ("both.jsonl", b'{"text": "a", "base64": "Yg=="}\n', "both `text` and `base64`"),
        ("x.csv", b"a,b\n", ".jsonl, .ndjson, .parquet, .avro"),
    ):
        (tmp_path / name).write_bytes(content)
        error = shell.run("import", "home", "others", str(tmp_path / name), code=2).stderr.replace("\n", " ")
        assert named in error, name
    assert by_segment(manager, "others") == {0: [b"a", b"b", b"ok"]}, "events before an invalid line are written"
    missing = shell.run("import", "home", "others", str(tmp_path / "none.jsonl"), code=2).stderr
    assert "none.jsonl" in missing.replace("\n", "")


def test_import_of_foreign_avro_files(shell: Shell, manager: nadi.StreamManager, tmp_path: Path) -> None:
    manager.create_stream("home", "records", 1)
    file = tmp_path / "own.avro"
    for kinds, record, named in (
        ({"event": "bytes", "key": "int"}, {"event": b"a", "key": 7}, "record 1,500 of"),
        ({"event": "bytes", "key": "int"}, {"event": b"a", "key": 7}, "`key`"),
        ({"event": "bytes", "segment_id": "string"}, {"event": b"a", "segment_id": "7"}, "`segment_id`"),
        ({"event": "int"}, {"event": 7}, "`event`"),
    ):
        fields = [{"name": name, "type": ["null", "bytes", kind]} for name, kind in kinds.items() if kind != "bytes"]
        fields += [{"name": name, "type": "bytes"} for name, kind in kinds.items() if kind == "bytes"]
        good = {name: b"a" if name == "event" else None for name in kinds}
        with file.open("wb") as to:
            fastavro.writer(to, {"type": "record", "name": "R", "fields": fields}, [good] * 1499 + [record])
        assert named in shell.run("import", "home", "records", str(file), code=2).stderr.replace("\n", " "), record
    with file.open("wb") as to:
        fastavro.writer(to, "string", ["a"])
    assert "`event`" in shell.run("import", "home", "records", str(file), code=2).stderr


def test_import_of_avro_with_a_missing_codec_names_the_package(tmp_path: Path) -> None:
    file = tmp_path / "own.avro"
    with file.open("wb") as to:
        kind = {"type": "record", "name": "R", "fields": [{"name": "event", "type": "bytes"}]}
        fastavro.writer(to, kind, [{"event": b"x"}])
    plain = file.read_bytes()
    for codec, package in (("lz4", "lz4"), ("snappy", "cramjam")):
        if importlib.util.find_spec(package) is None:
            header = b"\x14avro.codec" + bytes([2 * len(codec)]) + codec.encode()
            file.write_bytes(plain.replace(b"\x14avro.codec\x08null", header))
            with (
                closing(avro.Reader(file)) as reader,
                pytest.raises(InvalidArgumentError, match=f"codec {codec}.*install {package}"),
            ):
                next(iter(reader))


def test_readers_limit_memory_for_large_events(tmp_path: Path) -> None:
    events = [os.urandom(MIB) for _ in range(40)]
    file = tmp_path / "x.parquet"
    pq.write_table(pa.table({"event": events}), file)
    with closing(parquet.Reader(file)) as batches:
        sizes = [batch.size_bytes for batch, _ in batches]
    assert (sum(sizes), max(sizes) <= 8 * MIB) == (40 * MIB, True)
    file = tmp_path / "x.avro"
    with file.open("wb") as to:
        kind = {"type": "record", "name": "R", "fields": [{"name": "event", "type": "bytes"}]}
        fastavro.writer(to, kind, [{"event": event} for event in events])
    with closing(avro.Reader(file)) as records:
        sizes = [batch.size_bytes for batch, _ in records]
    assert (sum(sizes), max(sizes) <= 8 * MIB) == (40 * MIB, True)


def test_export_keeps_pipes_and_symbolic_links(shell: Shell, tmp_path: Path, written: list[bytes]) -> None:
    pipe, link, file = tmp_path / "pipe", tmp_path / "link", tmp_path / "file"
    os.mkfifo(pipe)
    done = shell.run("export", "home", "meters", str(pipe), "--format", "jsonl", "--force", code=2)
    assert str(pipe) in done.stderr.replace("\n", "")
    assert pipe.is_fifo()
    assert "`nadi read --json`" in shell.run("export", "home", "meters", "-", code=2).stderr.replace("\n", " ")
    link.symlink_to("file")
    shell.run("export", "home", "meters", str(link), "--format", "jsonl", "--quiet")
    assert link.is_symlink()
    assert len(file.read_bytes().splitlines()) == len(written)


def test_concurrent_exports_to_one_file_fail(shell: Shell, tmp_path: Path, written: list[bytes]) -> None:
    file = tmp_path / "x.jsonl"
    with _replacing(file) as part:
        part.write_bytes(b"the other's")
        done = shell.run("export", "home", "meters", str(file), code=2)
        assert part.name in done.stderr.replace("\n", "")
    assert file.read_bytes() == b"the other's"
    file.unlink()
    part.write_bytes(b"left by a killed export")
    shell.run("export", "home", "meters", str(file))
    assert len(file.read_bytes().splitlines()) == len(written)
    assert list(tmp_path.iterdir()) == [file]


def test_interrupted_export_removes_its_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Path.open

    def interrupted(self: Path, mode: str = "r") -> None:
        monkeypatch.undo()
        opened(self, mode).close()
        raise KeyboardInterrupt  # as by a signal while the file is created

    monkeypatch.setattr(Path, "open", interrupted)
    with pytest.raises(KeyboardInterrupt), _replacing(tmp_path / "x.jsonl"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_import_from_standard_input(server: nadi.standalone.EmbeddedServer, manager: nadi.StreamManager) -> None:
    manager.create_stream("home", "piped", 1)
    command = [sys.executable, "-m", "nadi.cli.app", "import", "home", "piped", "-", "--format"]
    environment = os.environ | {"NADI_CONTROLLER": server.controller_uri, "COLUMNS": "120"}

    def imported(kind: str) -> bytes:
        done = subprocess.run(
            [*command, kind], input=b'{"text":"a"}\n{"base64":"/w=="}', env=environment, capture_output=True, timeout=60
        )
        return done.stderr

    assert imported("jsonl") == b"wrote 2 events, 2 bytes\n"
    assert by_segment(manager, "piped") == {0: [b"a", b"\xff"]}
    assert b"/dev/stdin" in imported("parquet")


@pytest.mark.parametrize("kind", ["parquet", "avro"])
def test_import_of_a_damaged_file_fails(shell: Shell, tmp_path: Path, written: list[bytes], kind: str) -> None:
    file = tmp_path / f"cut.{kind}"
    shell.run("export", "home", "meters", str(file), "--quiet")
    data = bytearray(file.read_bytes())
    # more than a block, as Avro doesn't detect damage within an event
    data[len(data) // 3 : len(data) // 3 + 20_000] = random.Random(1).randbytes(20_000)
    file.write_bytes(data)
    assert "error: " in shell.run("import", "home", "meters-cut", str(file), "--create", "1", code=2).stderr


def test_import_of_parquet_detects_a_changed_byte(shell: Shell, tmp_path: Path, manager: nadi.StreamManager) -> None:
    """Avro files don't have checksums."""
    manager.create_stream("home", "noise")
    event = random.Random(1).randbytes(20_000)  # incompressible, so that the file contains it unchanged
    with manager.create_writer("home", "noise") as writer:
        writer.write_event(event)
    file = tmp_path / "noise.parquet"
    shell.run("export", "home", "noise", str(file), "--quiet")
    data = bytearray(file.read_bytes())
    data[data.index(event) + 10_000] ^= 1
    file.write_bytes(data)
    assert "error: " in shell.run("import", "home", "noise-cut", str(file), "--create", "1", code=2).stderr


def test_failed_export_keeps_the_existing_file(shell: Shell, tmp_path: Path, written: list[bytes]) -> None:
    file = tmp_path / "old.jsonl"
    file.write_bytes(b"old")
    for options, named in (
        ([], "--force"),
        (["--force", "--from", "none"], "'none'"),
        (["--force", "--slice", "none"], "'none'"),
        (["--force", "--slice", "none", "--to", "tail"], "--slice"),
    ):
        assert named in shell.run("export", "home", "meters", str(file), *options, code=None).stderr.replace("\n", " ")
    nowhere = tmp_path / "none" / "x.jsonl"
    error = shell.run("export", "home", "meters", str(nowhere), code=1).stderr
    assert str(nowhere) in error.replace("\n", "")
    (tmp_path / "folder.jsonl.part").mkdir()
    shell.run("export", "home", "meters", str(tmp_path / "folder.jsonl"), code=1)
    assert file.read_bytes() == b"old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.jsonl.part", "old.jsonl"]
    shell.run("export", "home", "meters", str(file), "--force")
    assert len(file.read_bytes().splitlines()) == len(written)
    assert msgspec.json.decode(file.read_bytes().splitlines()[0])["offset"] == 0


def test_export_to_avro_without_fastavro_names_the_extra(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: list[bytes]
) -> None:
    monkeypatch.setitem(sys.modules, "fastavro", None)
    monkeypatch.delitem(sys.modules, "nadi.cli.files.avro", raising=False)
    done = shell.run("export", "home", "meters", str(tmp_path / "x.avro"), code=2)
    assert "pip install 'nadi[avro]'" in done.stderr
    assert list(tmp_path.iterdir()) == []
