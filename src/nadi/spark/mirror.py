"""The checkpoint folder of a query, mirrored before each batch's tasks run, so that it goes on on another machine.

Once a batch is in its offset log, Spark tells the source that the batch before it is committed. All that the one before
made is on disk then, state included, and nothing of this one is in the sink. So a mirror of that moment is a checkpoint
to go on from: the batch runs again with the same ends, and the sink writes it once. Spark does so for batches without
rows too, of which it asks the source for no tasks. Only the first batch of a start, if it was in the offset log before,
is run without it: that one is mirrored when the query starts.

The byte stream `checkpoint-<name>` has records of what changed, the table entry says which of its bytes count. That is
changed by compare-and-set, and the bytes are appended at a known place: a second query with that name fails. A query
that is started begins with a record of the whole folder, as does one whose records have twice the folder's size.

A folder's history as bytes: records of the files that came, changed and went, each with its length in front.

>>> written = encode({"offsets/0": b"abc"}, ["offsets/9"])
>>> files = {"offsets/9": b"old"}
>>> apply(written, files)
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
    came: list[_CheckpointFile]
    went: list[str]


class Mirrored(msgspec.Struct, frozen=True):
    """What is kept under a name. batch: the last one planned; planned: the checksum of its offsets, as Spark has them
    in its log; start, end: of the bytes that count."""

    name: str
    query_id: str
    batch: int
    planned: str
    files: int
    size_bytes: int
    time_ms: int
    start: int
    end: int


def encode(came: Mapping[str, bytes], went: Iterable[str]) -> bytes:
    files = [_CheckpointFile(path, len(data), sha256(data).digest()) for path, data in came.items()]
    header = msgspec.msgpack.encode(_MirrorHeader(files, list(went)))
    return b"".join((_LENGTH.pack(len(header)), header, *came.values()))


def apply(records: bytes, files: MutableMapping[str, bytes]) -> None:
    """Do to the files what the records say; NadiError if they are damaged."""
    view, at = memoryview(records), 0
    while at < len(view):
        try:
            (size,) = _LENGTH.unpack_from(view, at)
            header = msgspec.msgpack.decode(view[at + _LENGTH.size : at + _LENGTH.size + size], type=_MirrorHeader)
        except (struct.error, msgspec.DecodeError) as error:
            raise NadiError(f"the mirrored checkpoint is damaged at byte {at:,}: {error}") from error
        at += _LENGTH.size + size
        for path in header.went:
            files.pop(path, None)
        for file in header.came:
            data = bytes(view[at : at + file.size])
            at += file.size
            if sha256(data).digest() != file.digest:
                raise NadiError(f"the mirrored file {file.path} is damaged: its checksum is another")
            files[file.path] = data


class CheckpointMirror:
    """The mirror of one query. folder: its checkpoint, on this machine or one that all its tasks write to."""

    def __init__(self, manager: StreamManager, scope: str, name: str, folder: str) -> None:
        self._manager, self._scope, self._name = manager, scope, name
        self._folder = Path(folder.removeprefix("file://").removeprefix("file:"))
        self._mirrors = _mirrors(manager, scope)
        self._record = self._mirrors.record(name)
        self._known: dict[str, tuple[int, int]] = {}  # by path: size and time of change
        self._writer: ByteStreamWriter | None = None
        self.is_own = False  # the folder is this query's, as far as it tells
        self._start = 0

    async def begin(self) -> None:
        """Mirror a batch that was planned just before the query was killed; InvalidArgumentError if the folder is not a
        query's, ConflictError as `keep`."""
        query_id, batch = self._query_id(), self._last_batch()
        kept = await self._record.find()
        if kept is not None and self._checked(kept, query_id, batch).batch < batch:
            await self.keep()

    async def keep(self, end: Mapping[str, Any] | None = None) -> None:
        """Mirror what has changed; ConflictError if another query has the name, or the folder is older than its
        mirror. end: where one of the latest two batches ends, InvalidArgumentError if the folder has others."""
        query_id, batch = self._query_id(), self._last_batch()
        if not self.is_own and end is not None:
            self._check_own(batch, end)
        writer = self._writer or await self._open(query_id, batch)
        now = self._files()
        self._check_has_state(now)
        size = sum(one for one, _ in now.values())
        if size > SPARK_MIRRORED_BYTES:
            raise InvalidArgumentError(
                f"the option 'mirror_checkpoint': {self._folder} has {size:,} bytes, and at most "
                f"{SPARK_MIRRORED_BYTES:,} are mirrored (limit spark_mirrored_bytes): keep it on a file system that "
                "lasts, and leave out the option"
            )
        is_whole = not self._known or writer.tell() - self._start > 2 * size + MIB
        if is_whole:
            self._known, self._start = {}, writer.tell()
        came = {}
        for path in (path for path, seen in now.items() if self._known.get(path) != seen):
            with suppress(FileNotFoundError):  # Spark deletes what is old
                came[path] = (self._folder / path).read_bytes()
        went = [path for path in self._known if path not in now]
        if came or went:
            await writer.write(encode(came, went))
            await writer.flush()
            at = round(time.time() * 1000)
            planned = self._planned(batch)
            kept = Mirrored(self._name, query_id, batch, planned, len(now), size, at, self._start, writer.tell())
            if not await self._record.replace(kept):
                raise ConflictError(
                    f"another query mirrors its checkpoint as {self._name!r}: give each its own 'mirror_name'"
                )
            if is_whole:
                await writer.truncate_before(self._start)
        self._known = now

    # --- inside -----------------------------------------------------------------------------

    async def _open(self, query_id: str, batch: int) -> ByteStreamWriter:
        await self._mirrors.prepare()
        if (kept := await self._record.find()) is not None:
            self._checked(kept, query_id, batch)
        await self._manager.create_stream(self._scope, stream_of(self._name))
        self._writer = await self._manager.create_byte_writer(self._scope, stream_of(self._name))
        return self._writer

    def _checked(self, kept: Mirrored, query_id: str, batch: int) -> Mirrored:
        """What is kept under the name, unless the folder was left behind by it: it may have gone on elsewhere."""
        if kept.query_id != query_id or kept.batch > batch or kept.planned != self._planned(kept.batch):
            is_other = "another " if kept.query_id == query_id and kept.batch <= batch else ""
            raise ConflictError(
                f"the mirror {self._name!r} has {is_other}batch {kept.batch} of query {kept.query_id}, and "
                f"{self._folder} is at batch {batch} of query {query_id}: restore it with "
                "`nadi spark checkpoint restore`, or give another 'mirror_name'"
            )
        return kept

    def _planned(self, batch: int) -> str:
        log = self._folder / "offsets" / str(batch)
        return sha256(log.read_bytes()).hexdigest() if log.exists() else ""

    def _query_id(self) -> str:
        try:
            return str(json.loads((self._folder / "metadata").read_text())["id"])
        except (OSError, ValueError, KeyError) as error:
            raise InvalidArgumentError(
                f"the option 'mirror_checkpoint' is {str(self._folder)!r}, where the query has no checkpoint "
                f"({error}): it must be its checkpointLocation, as a path on the driver's machine"
            ) from error

    def _check_own(self, batch: int, end: Mapping[str, Any]) -> None:
        """Spark has written the batches' offsets, one source's to a line; in version 2 of its log, which queries with
        named sources have, the source's name and a colon are before it."""
        logs = [self._folder / "offsets" / str(number) for number in (batch - 1, batch)]
        lines = [line for log in logs if log.exists() for line in log.read_text().splitlines()]
        ends = [found[1] for line in lines if (found := _OFFSET_LINE.fullmatch(line))]
        if not any(json.loads(one) == end for one in ends):
            raise InvalidArgumentError(
                f"the option 'mirror_checkpoint' is {str(self._folder)!r}, which is another query's checkpoint: its "
                f"batch {batch} ends elsewhere than this query's latest one. Give it this query's checkpointLocation"
            )
        self.is_own = True

    def _check_has_state(self, files: Iterable[str]) -> None:
        """The driver writes what describes an operator's state, and the tasks write the state."""
        parts = [path.split("/") for path in files]
        parts_of_state = [path for path in parts if path[0] == "state" and len(path) > 2]
        described = {path[1] for path in parts_of_state if path[2] == "_metadata"}
        has_state = {path[1] for path in parts_of_state if path[2].isdigit()}
        if described - has_state and any(path[0] == "commits" for path in parts):
            raise InvalidArgumentError(
                f"the option 'mirror_checkpoint': {self._folder} has nothing of the state that the query's tasks have "
                "written, so that the query could not be restored. They run on machines that don't share the folder: "
                "keep the checkpoint on a file system that they share"
            )

    def _last_batch(self) -> int:
        names = (log.name for log in (self._folder / "offsets").glob("[0-9]*"))
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def _files(self) -> dict[str, tuple[int, int]]:
        found = {}
        for path in self._folder.rglob("*"):
            with suppress(FileNotFoundError):  # Spark deletes what is old
                status = path.stat()
                if path.is_file() and not path.name.startswith("."):  # others are being written, or checksums
                    found[path.relative_to(self._folder).as_posix()] = status.st_size, status.st_mtime_ns
        return found


def stream_of(name: str) -> str:
    return f"checkpoint-{name}"


def _mirrors(manager: StreamManager, scope: str) -> Catalog[Mirrored]:
    return ledger(manager, scope, "mirrored checkpoint", "checkpoint/", Mirrored)


async def all_mirrored(manager: StreamManager, scope: str) -> tuple[list[Mirrored], list[Unreadable]]:
    """What is kept in a scope, by name; and the records that can't be read."""
    streams = set(await manager.list_streams(scope))
    kept, unreadable = await _mirrors(manager, scope).all()
    return [one for name, one in kept.items() if stream_of(name) in streams], unreadable


def _new_folder(name: str) -> Path:
    to = Path(name)
    if to.exists():
        raise InvalidArgumentError(f"{to} is there already: name a folder that is not")
    return to


async def restore(manager: StreamManager, scope: str, name: str, folder: str) -> Mirrored:
    """Write the mirrored checkpoint into a folder that is not there yet, all or nothing; InvalidArgumentError if it is.
    NotFoundError if nothing is kept under that name."""
    to = _new_folder(folder)
    kept = await _mirrors(manager, scope).get(name)
    records = bytearray()
    async with await manager.create_byte_reader(scope, stream_of(name), start=kept.start) as reader:
        while len(records) < kept.end - kept.start:
            part = await reader.read(min(_READ_BYTES, kept.end - kept.start - len(records)))
            if not part:
                raise NadiError(f"the mirrored checkpoint {name} ends after {len(records):,} bytes of {kept.end:,}")
            records += part
    files: dict[str, bytes] = {}
    apply(bytes(records), files)
    draft = to.with_name(f".{to.name}.restoring")
    shutil.rmtree(draft, ignore_errors=True)  # of one that was interrupted
    for path, data in files.items():
        target = (draft / path).resolve()
        if not target.is_relative_to(draft.resolve()):
            raise NadiError(f"the mirrored checkpoint has a file outside of it: {path}")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    draft.rename(to)
    return kept
