"""Mirror the checkpoint folder of a query before each batch's tasks run, so that another machine can continue it.

After a batch is in its offset log, Spark notifies the source that the previous batch is committed. At this moment all
data of the previous batch, state included, is on disk, and the sink has nothing of this batch. So the folder is a valid
checkpoint: the batch runs again with the same end, and the sink writes it once. Spark does this for batches without
rows too, for which it requests no tasks. Only the first batch after a start, if it was already in the offset log, runs
without it: it is mirrored when the query starts.

The byte stream `checkpoint-<name>` contains records of changes; the table entry says which of its bytes are valid. The
entry changes by compare-and-set, and bytes are appended at a known offset, so a second query of that name fails. A
query starts with a record of the whole folder, and writes another when its records exceed twice the folder's size.

A record lists the files added, changed and removed, each record with its length in front.

>>> record = encode({"offsets/0": b"abc"}, ["offsets/9"])
>>> files = {"offsets/9": b"old"}
>>> apply(record, files)
>>> files
{'offsets/0': b'abc'}
"""

from __future__ import annotations

import json
import re
import shutil
import struct
import time
from collections.abc import Iterable, Mapping, MutableMapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from nadi.client.aio import ByteStreamWriter, StreamManager
from nadi.client.tables.catalog import Catalog, Unreadable
from nadi.errors import ConflictError, InvalidArgumentError, NadiError
from nadi.limits import MIB, SPARK_MIRRORED_BYTES
from nadi.spark.ledger import ledger

_LENGTH = struct.Struct(">I")
_READ_BYTES = 8 * MIB
_OFFSET_LINE = re.compile(r"(?:[^{:]*:)?(\{.*\})")


class _CheckpointFile(msgspec.Struct, frozen=True):
    path: str
    size: int
    digest: bytes


class _MirrorHeader(msgspec.Struct, frozen=True):
    added: list[_CheckpointFile]
    removed: list[str]


class MirrorEntry(msgspec.Struct, frozen=True):
    """The table entry of a name. batch: the last one planned; planned: the checksum of its offsets in Spark's log;
    start, end: of the valid bytes."""

    name: str
    query_id: str
    batch: int
    planned: str
    files: int
    size_bytes: int
    time_ms: int
    start: int
    end: int


def encode(changed: Mapping[str, bytes], removed: Iterable[str]) -> bytes:
    files = [_CheckpointFile(path, len(data), sha256(data).digest()) for path, data in changed.items()]
    header = msgspec.msgpack.encode(_MirrorHeader(files, list(removed)))
    return b"".join((_LENGTH.pack(len(header)), header, *changed.values()))


def apply(records: bytes, files: MutableMapping[str, bytes]) -> None:
    """Apply the records to the files; NadiError if they are damaged."""
    view, offset = memoryview(records), 0
    while offset < len(view):
        try:
            (size,) = _LENGTH.unpack_from(view, offset)
            header = msgspec.msgpack.decode(
                view[offset + _LENGTH.size : offset + _LENGTH.size + size], type=_MirrorHeader
            )
        except (struct.error, msgspec.DecodeError) as error:
            raise NadiError(f"the mirrored checkpoint is damaged at byte {offset:,}: {error}") from error
        offset += _LENGTH.size + size
        for path in header.removed:
            files.pop(path, None)
        for file in header.added:
            data = bytes(view[offset : offset + file.size])
            offset += file.size
            if sha256(data).digest() != file.digest:
                raise NadiError(f"the mirrored file {file.path} is damaged: its checksum differs")
            files[file.path] = data


class CheckpointMirror:
    """The mirror of one query. folder: its checkpoint, on this machine or shared by all tasks."""

    def __init__(self, manager: StreamManager, scope: str, name: str, folder: str) -> None:
        self._manager, self._scope, self._name = manager, scope, name
        self._folder = Path(folder.removeprefix("file://").removeprefix("file:"))
        self._mirrors = _mirrors(manager, scope)
        self._record = self._mirrors.record(name)
        self._known: dict[str, tuple[int, int]] = {}  # by path: size and time of change
        self._writer: ByteStreamWriter | None = None
        self.is_own = False  # the folder was found to be this query's
        self._start = 0

    async def begin(self) -> None:
        """Mirror a batch that was planned just before the query was killed; InvalidArgumentError if the folder isn't a
        query's, ConflictError as in `keep`."""
        query_id, batch = self._query_id(), self._last_batch()
        entry = await self._record.find()
        if entry is not None and self._checked(entry, query_id, batch).batch < batch:
            await self.keep()

    async def keep(self, end: Mapping[str, Any] | None = None) -> None:
        """Mirror the changes; ConflictError if another query has the name, or the folder is older than its mirror. end:
        the end of one of the latest two batches, InvalidArgumentError if it isn't in the folder."""
        query_id, batch = self._query_id(), self._last_batch()
        if not self.is_own and end is not None:
            self._check_own(batch, end)
        writer = self._writer or await self._open(query_id, batch)
        now = self._files()
        self._check_has_state(now)
        size = sum(file_size for file_size, _ in now.values())
        if size > SPARK_MIRRORED_BYTES:
            raise InvalidArgumentError(
                f"the option 'mirror_checkpoint': {self._folder} has {size:,} bytes, more than the limit of "
                f"{SPARK_MIRRORED_BYTES:,} (spark_mirrored_bytes): keep the checkpoint on a durable file system, and "
                "remove the option"
            )
        is_full = not self._known or writer.tell() - self._start > 2 * size + MIB
        if is_full:
            self._known, self._start = {}, writer.tell()
        changed = {}
        for path in (path for path, status in now.items() if self._known.get(path) != status):
            with suppress(FileNotFoundError):  # Spark deletes old files
                changed[path] = (self._folder / path).read_bytes()
        removed = [path for path in self._known if path not in now]
        if changed or removed:
            await writer.write(encode(changed, removed))
            await writer.flush()
            time_ms = round(time.time() * 1000)
            planned = self._planned(batch)
            entry = MirrorEntry(
                self._name, query_id, batch, planned, len(now), size, time_ms, self._start, writer.tell()
            )
            if not await self._record.replace(entry):
                raise ConflictError(
                    f"another query mirrors its checkpoint as {self._name!r}: give each query its own 'mirror_name'"
                )
            if is_full:
                await writer.truncate_before(self._start)
        self._known = now

    # --- inside -----------------------------------------------------------------------------

    async def _open(self, query_id: str, batch: int) -> ByteStreamWriter:
        await self._mirrors.prepare()
        if (entry := await self._record.find()) is not None:
            self._checked(entry, query_id, batch)
        await self._manager.create_stream(self._scope, stream_of(self._name))
        self._writer = await self._manager.create_byte_writer(self._scope, stream_of(self._name))
        return self._writer

    def _checked(self, entry: MirrorEntry, query_id: str, batch: int) -> MirrorEntry:
        """Return the entry, unless the folder is older than it: the query may have continued on another machine."""
        if entry.query_id != query_id or entry.batch > batch or entry.planned != self._planned(entry.batch):
            is_other = "another " if entry.query_id == query_id and entry.batch <= batch else ""
            raise ConflictError(
                f"the mirror {self._name!r} has {is_other}batch {entry.batch} of query {entry.query_id}, but "
                f"{self._folder} is at batch {batch} of query {query_id}: restore it with "
                "`nadi spark checkpoint restore`, or use another 'mirror_name'"
            )
        return entry

    def _planned(self, batch: int) -> str:
        log = self._folder / "offsets" / str(batch)
        return sha256(log.read_bytes()).hexdigest() if log.exists() else ""

    def _query_id(self) -> str:
        try:
            return str(json.loads((self._folder / "metadata").read_text())["id"])
        except (OSError, ValueError, KeyError) as error:
            raise InvalidArgumentError(
                f"the option 'mirror_checkpoint' is {str(self._folder)!r}, which lacks a checkpoint of the query "
                f"({error}): it must be its checkpointLocation, as a path on the driver's machine"
            ) from error

    def _check_own(self, batch: int, end: Mapping[str, Any]) -> None:
        """Check the batches' offsets in Spark's log, one source per line, preceded by the source's name and a colon in
        version 2 of the log, which queries with named sources have."""
        logs = [self._folder / "offsets" / str(number) for number in (batch - 1, batch)]
        lines = [line for log in logs if log.exists() for line in log.read_text().splitlines()]
        ends = [match[1] for line in lines if (match := _OFFSET_LINE.fullmatch(line))]
        if not any(json.loads(text) == end for text in ends):
            raise InvalidArgumentError(
                f"the option 'mirror_checkpoint' is {str(self._folder)!r}, which is another query's checkpoint: its "
                f"batch {batch} ends elsewhere. Set it to this query's checkpointLocation"
            )
        self.is_own = True

    def _check_has_state(self, files: Iterable[str]) -> None:
        """Check that the tasks' state files are in the folder: the driver writes state metadata, the tasks the
        state."""
        parts = [path.split("/") for path in files]
        parts_of_state = [path for path in parts if path[0] == "state" and len(path) > 2]
        described = {path[1] for path in parts_of_state if path[2] == "_metadata"}
        has_state = {path[1] for path in parts_of_state if path[2].isdigit()}
        if described - has_state and any(path[0] == "commits" for path in parts):
            raise InvalidArgumentError(
                f"the option 'mirror_checkpoint': {self._folder} lacks the state that the query's tasks have written, "
                "so the query couldn't be restored. The tasks run on machines that don't share the folder: keep the "
                "checkpoint on a file system that they share"
            )

    def _last_batch(self) -> int:
        names = (log.name for log in (self._folder / "offsets").glob("[0-9]*"))
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def _files(self) -> dict[str, tuple[int, int]]:
        files = {}
        for path in self._folder.rglob("*"):
            with suppress(FileNotFoundError):  # Spark deletes old files
                status = path.stat()
                if path.is_file() and not path.name.startswith("."):  # hidden files are incomplete, or checksums
                    files[path.relative_to(self._folder).as_posix()] = status.st_size, status.st_mtime_ns
        return files


def stream_of(name: str) -> str:
    return f"checkpoint-{name}"


def _mirrors(manager: StreamManager, scope: str) -> Catalog[MirrorEntry]:
    return ledger(manager, scope, "mirrored checkpoint", "checkpoint/", MirrorEntry)


async def all_mirrored(manager: StreamManager, scope: str) -> tuple[list[MirrorEntry], list[Unreadable]]:
    """Return the entries of a scope, sorted by name, and the unreadable records."""
    streams = set(await manager.list_streams(scope))
    entries, unreadable = await _mirrors(manager, scope).all()
    return [entry for name, entry in entries.items() if stream_of(name) in streams], unreadable


def _new_folder(name: str) -> Path:
    path = Path(name)
    if path.exists():
        raise InvalidArgumentError(f"{path} already exists: choose a new folder")
    return path


async def restore(manager: StreamManager, scope: str, name: str, folder: str) -> MirrorEntry:
    """Write the mirrored checkpoint into a new folder, all or nothing; InvalidArgumentError if the folder exists,
    NotFoundError if the mirror doesn't."""
    destination = _new_folder(folder)
    entry = await _mirrors(manager, scope).get(name)
    records = bytearray()
    async with await manager.create_byte_reader(scope, stream_of(name), start=entry.start) as reader:
        while len(records) < entry.end - entry.start:
            part = await reader.read(min(_READ_BYTES, entry.end - entry.start - len(records)))
            if not part:
                raise NadiError(f"the mirrored checkpoint {name} ends after {len(records):,} of {entry.end:,} bytes")
            records += part
    files: dict[str, bytes] = {}
    apply(bytes(records), files)
    draft = destination.with_name(f".{destination.name}.restoring")
    shutil.rmtree(draft, ignore_errors=True)  # left by an interrupted call
    for path, data in files.items():
        target = (draft / path).resolve()
        if not target.is_relative_to(draft.resolve()):
            raise NadiError(f"the mirrored checkpoint has a file outside its folder: {path}")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    draft.rename(destination)
    return entry
