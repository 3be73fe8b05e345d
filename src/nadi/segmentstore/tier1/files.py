"""The durable log in local files, used by a data folder's server.

`append` passes a frame to the log's writer thread, which writes it at the end of the current file, syncs it, and then
answers; a small frame on a fast disk is written in the loop's thread (`WritePace`). Files are full of zeros or of
released frames before they are used, so that a write changes no metadata.

The first append after `open` starts a new file, as does a frame that doesn't fit the current one; a frame larger than
its file enlarges it. After a failed write the log refuses appends: the disk's contents are uncertain until it is
reopened.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import queue
import secrets
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Self, TypeVar

from crc32c import crc32c

from nadi import limits
from nadi.errors import ClosedError, CorruptLogError, NotFoundError, StorageFullError, UnavailableError
from nadi.segmentstore.tier1 import disk
from nadi.segmentstore.tier1.disk import is_disk_full
from nadi.segmentstore.tier1.fence import Fence, read_epoch
from nadi.segmentstore.tier1.layout import BLOCK_BYTES
from nadi.segmentstore.tier1.log import NOTHING, AppendedFrame, Frame, HeadsPage, LogAddress, LogRange, PartRead
from nadi.segmentstore.tier1.reading import next_batch, read_checked, read_heads, read_near
from nadi.segmentstore.tier1.recovery import UNKNOWN, LogFile, LogReplay, abandoned_headers, read_headers
from nadi.segmentstore.tier1.writer import FileSupply, FrameWriter

T = TypeVar("T")
_logger = logging.getLogger(__name__)
_WEIGHT = 1 / 16  # weight of the latest write in the average
_MOST_S = 4 * limits.LOG_QUICK_WRITE_S  # cap on one write: a stall predicts little about the next


class WritePace:
    """Decides whether to write in the loop's thread, from the duration of such writes. A write by the writer thread
    doesn't count, as its duration includes waiting for the interpreter."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._average_s = limits.LOG_QUICK_WRITE_S / 2
        self._pause_s = 0.0  # the latest pause
        self._pause_until = clock()

    def is_quick(self, payload_bytes: int) -> bool:
        return payload_bytes <= limits.LOG_QUICK_FRAME_BYTES and self._clock() >= self._pause_until

    def record(self, seconds: float) -> None:
        self._average_s += (min(seconds, _MOST_S) - self._average_s) * _WEIGHT
        if self._average_s > limits.LOG_QUICK_WRITE_S:
            now = self._clock()
            is_slow_again = now - self._pause_until < self._pause_s
            self._pause_s = (
                min(self._pause_s * 2, limits.LOG_QUICK_LONGEST_PAUSE_S) if is_slow_again else limits.LOG_QUICK_PAUSE_S
            )
            self._pause_until = now + self._pause_s
            self._average_s = limits.LOG_QUICK_WRITE_S / 2


class FileLog:
    """A DurableLog in a separate folder. Created by `open`; then `replay`, then append."""

    def __init__(
        self,
        folder: Path,
        file_bytes: int,
        spare_files: int,
        name: str,
        begins: tuple[int, int] | None,
    ) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._name = name
        self._folder = folder
        direct = disk.supports_direct(folder)
        known = read_epoch(folder)
        known_id, former_epoch = known if known else (None, 0)
        if begins is not None:
            headers, newest_epoch = abandoned_headers(folder, known_id)
            former_epoch = max(former_epoch, newest_epoch, begins[1])
        else:
            headers = read_headers(folder, known_id)
            former_epoch = max(former_epoch, *(file.epoch for file in headers.used), 0)
        log_id = headers.log_id or secrets.token_bytes(16)
        self._fence = Fence.take(folder, log_id, former_epoch + 1)
        try:
            if begins is None:
                headers = read_headers(folder, log_id)  # again, now that the previous owner is fenced
        except BaseException:
            self._fence.close()
            raise
        self._log_id, self._log_crc = log_id, crc32c(log_id)
        self._replay = LogReplay(headers, log_id, is_new=begins is not None)
        self._files = {file.number: file for file in headers.used}  # lowest first
        self._left_over = [file.path for file in headers.prepared]
        self._first_number = headers.next_number
        self._next_sequence = 0  # 0 until replay() has ended
        self._replaying: asyncio.Future[list[Frame]] | None = None  # in a thread

        self._supply = FileSupply(folder, file_bytes, spare_files, self._fence, direct=direct)
        self._writer = FrameWriter(log_id, self._fence, self._supply, self._on_new_file)
        self._thread = threading.Thread(target=self._run, name=f"nadi-log-{name}", daemon=True)
        self._queue: queue.SimpleQueue[tuple[Sequence[bytes], asyncio.Future[AppendedFrame]] | None] = (
            queue.SimpleQueue()
        )
        self._lock = threading.Lock()  # guards _files, _kept and _released, shared by the writer and readers
        self._current: LogFile | None = None  # the last of _files, once it has been written
        self._before_bytes = 0  # size of the files before it
        self._kept: dict[int, LogFile] = {}  # released by `truncate`, but still needed
        self._released: deque[LogFile] = deque()  # waiting for their last reader to end
        self._appending = False
        self._failure: Exception | None = None
        self._pace = WritePace()
        self._closed = False

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        file_bytes: int = limits.LOG_FILE_BYTES,
        spare_files: int = limits.LOG_SPARE_FILES,
        name: str = "log",
    ) -> Self:
        """Become the owner of the log in `folder`, which is created if it's missing; blocking. name: for messages. At
        most `spare_files` released files of `file_bytes` are stored for reuse. CorruptLogError: file headers are
        damaged, and frames don't replace them; no log file was changed. DataFolderVersionError: another version of nadi
        wrote it. OSError: the folder can't be used."""
        assert file_bytes % BLOCK_BYTES == 0 < file_bytes // BLOCK_BYTES - 1, "a file has at least two whole blocks"
        return cls(folder, file_bytes, spare_files, name, None)

    @classmethod
    async def begin(cls, folder: Path, part: bytes, after: int, epoch: int = 0, *, name: str = "log") -> None:
        """Restart the log in `folder` with a frame of that part after frame `after`, in an epoch later than `epoch`.
        Existing frames, perhaps damaged, aren't replayed any more, but stay readable. Raises as `append`."""
        new = await asyncio.to_thread(cls, folder, limits.LOG_FILE_BYTES, limits.LOG_SPARE_FILES, name, (after, epoch))
        try:
            async for _ in new.replay(after):
                raise AssertionError("the log is new")
            await new.append([part])
        finally:
            await new.close()

    @property
    def epoch(self) -> int:
        return self._fence.epoch

    @property
    def size_bytes(self) -> int:
        return self._before_bytes + (self._current.end if self._current is not None else 0)

    @property
    def last_sequence(self) -> int:
        return max(0, self._next_sequence - 1)

    async def replay(self, after_sequence: int) -> AsyncIterator[Frame]:
        assert self._next_sequence == 0, "replay() is called once, before the first append"
        frames = self._frames(after_sequence)
        reading = self._read_some(frames)
        while frames_read := await asyncio.shield(reading):
            reading = self._read_some(frames)  # while the previous ones are applied
            for frame in frames_read:
                yield frame

    def _read_some(self, frames: Iterator[Frame]) -> asyncio.Future[list[Frame]]:
        self._replaying = asyncio.get_running_loop().run_in_executor(None, next_batch, frames)
        return self._replaying

    def _frames(self, after_sequence: int) -> Iterator[Frame]:
        yield from self._replay.frames(after_sequence)
        self._next_sequence = self._replay.next_sequence
        self._before_bytes = sum(file.end for file in self._files.values())
        self._supply.start(self._left_over, reuse=bool(self._files))
        self._thread.start()
        self._writer.prepare(self._first_number)

    @property
    def is_full(self) -> bool:
        return self._supply.is_full

    @property
    def sure_bytes(self) -> int:
        return self._writer.sure_bytes

    def free_bytes(self, of_reserve: float = NOTHING) -> int:
        return self._writer.free_bytes(of_reserve)

    def is_settled(self, payload_bytes: int) -> bool:
        return self._writer.is_settled(payload_bytes)

    async def settle(self, payload_bytes: int) -> None:
        if not self.is_settled(payload_bytes):
            await asyncio.get_running_loop().run_in_executor(None, self._supply.settle)

    def _check_open(self) -> None:
        assert self._next_sequence > 0, "replay() must have ended before the first append"
        assert not self._appending, "one append at a time"
        if self._closed:
            raise ClosedError(f"the log {self._name} is closed")
        if isinstance(self._failure, ClosedError):
            raise ClosedError(str(self._failure))
        if self._failure is not None:
            raise UnavailableError(f"an append to the log {self._name} has failed: open it again")

    async def append(self, parts: Sequence[bytes]) -> AppendedFrame:
        self._check_open()
        size = sum(map(len, parts))
        if self._pace.is_quick(size) and self._writer.fits(size, len(parts)):
            return self._write_here(parts)
        done: asyncio.Future[AppendedFrame] = asyncio.get_running_loop().create_future()
        self._appending = True
        self._queue.put((parts, done))
        return await done

    async def read_at(self, address: LogAddress, offset: int, length: int, checksum: bytes = b"") -> bytes:
        file = self._pin(address)  # now, before a truncate() can intervene
        return await self._reading(file, lambda: read_checked(file, self._log_crc, address, offset, length, checksum))

    async def read_parts(self, parts: Sequence[LogRange]) -> list[PartRead]:
        read: list[PartRead] = []
        for _, group in itertools.groupby(parts, lambda part: part.address.file):
            file_parts = list(group)
            try:
                file = self._pin(file_parts[0].address)
            except NotFoundError as error:
                read += [error] * len(file_parts)
            else:
                read += await self._reading(file, partial(read_near, file, self._log_crc, file_parts))
        return read

    async def read_heads(self, after_sequence: int) -> AsyncIterator[HeadsPage]:
        last_sequence = self.last_sequence
        with self._lock:
            files = list(self._files.values())
        for file, following in zip(files, [*files[1:], None], strict=False):
            stop = min(following.first_sequence if following is not None else UNKNOWN, last_sequence + 1)
            position, sequence = BLOCK_BYTES, file.first_sequence
            while after_sequence + 1 < stop and sequence < stop:
                with self._lock:
                    if self._files.get(file.number) is not file:  # released meanwhile
                        break
                try:
                    pinned, place = self._pin(LogAddress(sequence, file.number, position)), (position, sequence)
                    look = partial(read_heads, pinned, self._log_crc, place, stop, after_sequence, limits.MIB)
                    heads = await self._reading(pinned, look)
                except NotFoundError:
                    problem = f"the file is missing, with frames {sequence:,} to {stop - 1:,}"
                    heads = HeadsPage(position, stop, 0, (CorruptLogError(str(file.path), 0, problem),))
                except OSError as error:
                    raise UnavailableError(f"the log {self._name} can't be read: {error}") from error
                yield heads
                position, sequence = heads.position, heads.sequence

    def has(self, address: LogAddress, length: int) -> bool:
        with self._lock:
            file = self._files.get(address.file) or self._kept.get(address.file)
            return file is not None and address.offset + length <= file.size_bytes

    def truncate(self, before_sequence: int, keep: Iterable[LogAddress] = ()) -> None:
        numbers = {address.file for address in keep}
        with self._lock:
            files = list(self._files.values())
            for file, following in itertools.pairwise(files):
                if following.first_sequence > before_sequence:
                    break
                self._kept[file.number] = self._files.pop(file.number)
                self._before_bytes -= file.end
            for number in [number for number in self._kept if number not in numbers]:
                self._released.append(self._kept.pop(number))
            self._recycle_unread()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._replaying is not None:
            await asyncio.gather(self._replaying, return_exceptions=True)
        await asyncio.get_running_loop().run_in_executor(None, self._stop)

    def _write_here(self, parts: Sequence[bytes]) -> AppendedFrame:
        """Write in the loop's thread, while the writer thread is idle."""
        began = time.perf_counter()
        try:
            appended = self._writer.write(parts, self._next_sequence)
        except Exception as error:
            self._failure = self._mapped(error)
            raise self._failure from self._failure.__cause__
        self._next_sequence += 1
        self._pace.record(time.perf_counter() - began)
        return appended

    def _run(self) -> None:
        while (request := self._queue.get()) is not None:
            parts, done = request
            outcome: AppendedFrame | Exception
            try:
                outcome = self._writer.write(parts, self._next_sequence)
                self._next_sequence += 1
            except Exception as error:  # passed to the caller
                self._failure = outcome = self._mapped(error)
            with contextlib.suppress(RuntimeError):  # the loop may be closed by now
                done.get_loop().call_soon_threadsafe(self._answer, done, outcome)

    def _answer(self, done: asyncio.Future[AppendedFrame], outcome: AppendedFrame | Exception) -> None:
        self._appending = False
        if done.done():  # cancelled meanwhile; the frame is in the log nevertheless
            return
        if isinstance(outcome, Exception):
            done.set_exception(outcome)
        else:
            done.set_result(outcome)

    def _mapped(self, error: Exception) -> Exception:
        if is_disk_full(error):
            full = StorageFullError(f"no space for the log {self._name} ({error}): free space on its disk")
            full.__cause__ = error
            return full
        return error

    def _on_new_file(self, file: LogFile) -> None:
        with self._lock:
            if self._current is not None:
                self._before_bytes += self._current.end
            self._files[file.number] = self._current = file

    def _pin(self, address: LogAddress) -> LogFile:
        """Return the frame's file, which isn't recycled before `_read` has ended."""
        if self._closed:
            raise ClosedError(f"the log {self._name} is closed")
        with self._lock:
            file = self._files.get(address.file) or self._kept.get(address.file)
            if file is None:
                raise NotFoundError(f"the log {self._name} has no file {address.file:,} (any more)")
            file.open_reading()
            file.readers += 1
            return file

    async def _reading(self, file: LogFile, read: Callable[[], T]) -> T:
        reading = asyncio.get_running_loop().run_in_executor(None, self._read, file, read)
        return await asyncio.shield(reading)  # so that it always ends by releasing the file

    def _read(self, file: LogFile, read: Callable[[], T]) -> T:
        """Read in a thread, as the disk and the checksum of many bytes may take long."""
        try:
            return read()
        finally:
            with self._lock:
                file.readers -= 1
                self._recycle_unread()
                if self._closed and not file.readers:
                    file.close_reading()

    def _recycle_unread(self) -> None:
        """Recycle released files without readers, in the order of their release."""
        while self._released and not self._released[0].readers:
            file = self._released.popleft()
            file.close_reading()
            self._supply.recycle(file.path)

    def _stop(self) -> None:
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()
            self._supply.close()
        self._writer.close()
        self._fence.close()
        with self._lock:
            for file in [*self._files.values(), *self._kept.values(), *self._released]:
                if not file.readers:
                    file.close_reading()
