"""A folder as engine and registry, where it differs from other stores: killed and stopped processes, and full disks."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nadi.errors import StorageFullError, UnavailableError
from nadi.object_log import files as folders
from nadi.object_log.failures import RefusedError
from nadi.object_log.files import open_files
from nadi.runtime import REAL

WRITER = """
import asyncio, sys
from pathlib import Path
from nadi.object_log.files import open_files
from nadi.runtime import REAL

async def main():
    engine, registry = await open_files(Path(sys.argv[1]), REAL)
    first, entry = int(sys.argv[2]), await registry.get("counter")
    version = entry.version if entry else None
    for number in range(first, first + 100_000):
        body = b"%d " % number * 3_000
        assert await engine.create(f"log/0/{number // 50}/{number}", [body[:5], body[5:]])
        version = await registry.compare_and_set("counter", body, version)
        assert version is not None
        print(number, flush=True)

asyncio.run(main())
"""


COUNTER = """
import asyncio, sys
from pathlib import Path
from nadi.object_log import files as folder
from nadi.object_log.files import open_files
from nadi.runtime import REAL

folder._LOCK_WAIT_S = 60.0  # for other processes on a stalled disk

async def main():
    engine, registry = await open_files(Path(sys.argv[1]), REAL)
    done = 0
    while done < 60:
        entry = await registry.get("counter")
        count = int(entry.value) if entry else 0
        if await registry.compare_and_set("counter", b"%d" % (count + 1), entry.version if entry else None):
            assert await engine.create(f"counted/{count + 1}", [sys.argv[2].encode()])
            done += 1
            print(count + 1, flush=True)
    await engine.close()

asyncio.run(main())
"""


BOUND = """
import asyncio, sys, time
from pathlib import Path
from nadi.object_log.files import open_files
from nadi.runtime import REAL

async def main():
    engine, registry = await open_files(Path(sys.argv[1]), REAL)
    for value in range(2):
        await registry.put("servers/a", b"%d" % value, ends_with_process=True)
    await registry.put("servers/b", b"stays")
    print(0, flush=True)
    time.sleep(600)

asyncio.run(main())
"""


def start(folder: Path, argument: object, program: str = WRITER) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program, str(folder), str(argument)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, bufsize=1)


def lines_of(writer: subprocess.Popen[str]) -> Iterator[int]:
    assert writer.stdout is not None
    return map(int, writer.stdout)


async def test_killed_writer_leaves_old_or_new_value(tmp_path: Path) -> None:
    acknowledged, first, chance = set(), 0, random.Random(7)
    for _ in range(6):
        writer = start(tmp_path, first)
        numbers = lines_of(writer)
        for _ in range(chance.randrange(1, 60)):
            acknowledged.add(next(numbers))
        await asyncio.sleep(chance.random() * 0.003)
        writer.send_signal(signal.SIGKILL)
        acknowledged.update(numbers)
        writer.wait()
        assert writer.stdout is not None
        writer.stdout.close()
        engine, registry = await open_files(tmp_path, REAL)
        sizes: dict[str, int] = {}
        async for page in engine.listed("log"):
            sizes |= page
        numbers_found = {int(name.rpartition("/")[2]) for name in sizes}
        assert acknowledged <= numbers_found
        for number in numbers_found:
            body = await engine.get(f"log/0/{number // 50}/{number}")
            assert body is not None
            assert bytes(body) == b"%d " % number * 3_000
        entry = await registry.get("counter")
        assert entry is not None
        counter = int(entry.value.split()[0])
        assert entry.value == b"%d " % counter * 3_000
        assert max(acknowledged) <= counter <= max(numbers_found)
        first = max(numbers_found) + 1
        await engine.close()


async def test_concurrent_counters_stay_correct_when_one_is_killed(tmp_path: Path) -> None:
    counters = [start(tmp_path, name, COUNTER) for name in ("a", "b", "killed")]
    killed = lines_of(counters[2])
    seen = [next(killed) for _ in range(15)]
    counters[2].send_signal(signal.SIGKILL)
    for counter in counters:
        assert counter.stdout is not None
        seen += map(int, counter.stdout)
        counter.stdout.close()
    assert [counter.wait() for counter in counters] == [0, 0, -signal.SIGKILL]
    assert len(seen) == len(set(seen))
    engine, registry = await open_files(tmp_path, REAL)
    entry = await registry.get("counter")
    assert entry is not None
    assert len(seen) <= int(entry.value) <= len(seen) + 1  # one set may be unreported
    assert max(seen) <= int(entry.value)
    await engine.close()


async def test_unfinished_files_are_removed_once_they_are_old(tmp_path: Path) -> None:
    engine, _ = await open_files(tmp_path, REAL)
    folder = tmp_path / ".nadi" / "unfinished"
    new, old = folder / "new", folder / "old"
    for path in (new, old):
        path.write_bytes(b"half")
    an_hour_ago_s = new.stat().st_mtime - folders.UNFINISHED_S
    os.utime(old, (an_hour_ago_s - 60, an_hour_ago_s - 60))
    assert await engine.create("a/b", [b"x"])
    assert list(folder.iterdir()) == [new], "another process may still be writing the new file"
    await engine.close()


async def test_lock_of_stopped_process_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "_LOCK_WAIT_S", 0.2)
    engine, registry = await open_files(tmp_path, REAL)
    version = await registry.put("servers/a", b"1")
    stopped = folders.Folder(tmp_path, REAL)
    with stopped.setting("servers/a"):
        with pytest.raises(UnavailableError):
            await registry.compare_and_set("servers/a", b"2", version)
        entry = await registry.get("servers/a")
        assert entry is not None
        assert entry.value == b"1"
    assert await registry.compare_and_set("servers/a", b"2", version) is not None
    await engine.close()


async def test_bound_value_ends_with_its_process(tmp_path: Path) -> None:
    """A stopped process still has its value: it may wake up."""
    engine, registry = await open_files(tmp_path, REAL)
    process = start(tmp_path, "", BOUND)
    next(lines_of(process))
    process.send_signal(signal.SIGSTOP)
    assert set(await registry.list("servers")) == {"servers/a", "servers/b"}
    entry = await registry.get("servers/a")
    assert entry is not None
    assert entry.value == b"1"
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()
    assert await registry.get("servers/a") is None
    assert set(await registry.list("servers")) == {"servers/b"}
    await registry.put("servers/a", b"another process's", ends_with_process=True)
    assert set(await registry.list("servers")) == {"servers/a", "servers/b"}
    await registry.delete("servers/a")
    assert list((tmp_path / ".nadi" / "processes").iterdir()) == []
    await engine.close()


async def test_equal_values_have_different_versions(tmp_path: Path) -> None:
    engine, registry = await open_files(tmp_path, REAL)
    first = await registry.put("a", b"same")
    second = await registry.put("a", b"same")
    assert await registry.compare_and_set("a", b"same", first) is None
    assert await registry.compare_and_set("a", b"same", second) is not None
    await engine.close()


async def test_full_disk_raises_storage_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, registry = await open_files(tmp_path, REAL)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folders, "write_all", full)
    with pytest.raises(StorageFullError):
        await engine.create("log/1", [b"x"])
    with pytest.raises(StorageFullError):
        await registry.put("a", b"x")
    monkeypatch.undo()
    assert await engine.get("log/1") is None
    assert await engine.create("log/1", [b"x"])
    assert list((tmp_path / ".nadi" / "unfinished").iterdir()) == []
    await engine.close()


async def test_unwritable_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _ = await open_files(tmp_path / "not yet" / "store", REAL)
    assert (tmp_path / "not yet").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "not yet/store").stat().st_mode & 0o777 == 0o700

    def forbidden(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(folders, "write_all", forbidden)
    with pytest.raises(RefusedError, match=r"log/1.*Permission denied"):
        await engine.create("log/1", [b"x"])
    await engine.close()


async def test_a_file_where_the_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file")
    with pytest.raises(UnavailableError):
        await open_files(tmp_path / "store", REAL)
    engine, registry = await open_files(tmp_path / "other", REAL)
    assert await engine.create("a", [b"x"])
    assert await engine.get("a/b") is None
    with pytest.raises(UnavailableError, match="a/b"):
        await engine.create("a/b", [b"x"])
    await engine.delete(["a/b"])
    assert await registry.get("a/b") is None
    await engine.close()
