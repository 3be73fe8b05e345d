"""`nadi export` and `nadi import`: copy a range of a stream to a file, and a file's events to a stream.

A module each implements JSON lines, Parquet and Avro.

`export` writes events in read order, so that each key's events are in order, with segment and offset, and with the key
if a field of JSON events contains it (keys aren't stored). The file gets its name when it is complete and synced.

`import` writes events in file order with their keys. Events without a key use their segment's name as the key if it is
known, so that each segment's events stay in order; `--key` keeps all events in order.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nadi.cli.events.write import create_missing, sink
from nadi.cli.options import (
    By,
    Create,
    From,
    InTransaction,
    KeyField,
    OnDamage,
    Quiet,
    Scope,
    Stream,
    TimeBasis,
    To,
    cut_at,
)
from nadi.cli.printing import INTERRUPTED, bar, warn
from nadi.durable_io import sync_folder
from nadi.errors import InvalidArgumentError, NadiError

if TYPE_CHECKING:
    from nadi.client import StreamManager


class FileFormat(StrEnum):
    JSONL = "jsonl"
    PARQUET = "parquet"
    AVRO = "avro"


_ENDINGS = {
    ".jsonl": FileFormat.JSONL,
    ".ndjson": FileFormat.JSONL,
    ".parquet": FileFormat.PARQUET,
    ".avro": FileFormat.AVRO,
}


Format = Annotated[
    FileFormat | None, typer.Option("--format", help="File format. (default: from the file's extension)")
]
_PART = ".part"


@dataclass(frozen=True, slots=True)
class ExportBatch:
    """Events in order, as columns. segment_ids, offsets, keys: None where unknown."""

    events: list[bytes]
    segment_ids: list[int | None]
    offsets: list[int | None]
    keys: list[str | None]

    def __len__(self) -> int:
        return len(self.events)

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.events))


def format_of(file: Path, given: FileFormat | None) -> FileFormat:
    """Return the given format, or derive it from the file's extension."""
    if given is not None:
        return given
    kind = _ENDINGS.get(file.suffix.lower())
    if kind is None:
        raise InvalidArgumentError(
            f"the format of {file} is unknown: use an extension of {', '.join(_ENDINGS)}, or --format"
        )
    return kind


def opener_of(kind: FileFormat) -> Any:
    """Return a format's module.

    Its Writer(file, about) has `write` for a batch and `close`, which completes the file; `about` is stored as metadata
    if the format supports that. Its Reader(file) yields batches with the approximate number of bytes read so far;
    InvalidArgumentError: the file isn't of this format.
    """
    return import_module(f"nadi.cli.files.{kind}")


def export(
    manager: StreamManager,
    scope: Scope,
    stream: Stream,
    file: Annotated[Path, typer.Argument(help="File to write: .jsonl, .parquet or .avro.")],
    start: From = None,
    end: To = None,
    by: By = TimeBasis.ARRIVAL,
    slice_name: Annotated[str | None, typer.Option("--slice", help="Export this named slice.", metavar="NAME")] = None,
    kind: Format = None,
    key_field: KeyField = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    on_damage: OnDamage = "raise",
    quiet: Quiet = False,
) -> None:
    """Export a stream, a range of it or a named slice to a file."""
    if str(file) == "-":
        raise InvalidArgumentError("export can't write to standard output: name a file, or use `nadi read --json`")
    file_format = format_of(file, kind)
    from nadi.model.field_path import KEY_FIELD, parse_path
    from nadi.model.json_events import known_key_in

    key_path = None if key_field is None else parse_path(key_field, KEY_FIELD)
    if file.exists() and not file.is_file():
        raise InvalidArgumentError(f"{file} is not a regular file: choose another name")
    if file.exists() and not force:
        raise InvalidArgumentError(f"{file} already exists: choose another name, or overwrite it with --force")
    cuts = manager.cuts(scope, stream)
    if slice_name is None:
        first, last = cut_at(cuts, start or "head", by), cut_at(cuts, end or "tail", by, end=True)
    elif start is not None or end is not None:
        raise InvalidArgumentError("--from and --to have no effect with --slice, which has its own start and end")
    else:
        named = manager.slices(scope).get(slice_name)
        if named.stream != stream:
            raise InvalidArgumentError(f"slice {slice_name} belongs to stream {named.stream}, not to {stream}")
        first, last = named.start, named.end
    total = cuts.bytes_between(first, last)
    about = {"scope": scope, "stream": stream, "from": first.as_text(), "to": last.as_text()}
    reader = manager.create_reader(scope, stream, start=first, end=last, on_damage=on_damage)
    events = size = done = 0
    try:
        with (
            _replacing(file) as part,
            reader,
            bar("exporting", total, quiet=quiet) as report,
            _closing(opener_of(file_format).Writer(part, about)) as out,
        ):
            for segment_id, block in reader:
                data = block.events()
                keys = [None if key_path is None else known_key_in(event, key_path) for event in data]
                batch = ExportBatch(data, [segment_id] * len(data), block.offsets().tolist(), keys)
                out.write(batch)
                events, size, done = events + len(batch), size + batch.size_bytes, done + block.size_bytes
                report(done)
    except NadiError:  # includes timeouts of the server, which are OSErrors
        raise
    except OSError as error:
        raise NadiError(f"can't write {file}: {error.strerror or error}") from None
    except KeyboardInterrupt:
        warn(f"{file} was not written")
        raise typer.Exit(INTERRUPTED) from None
    if not quiet:
        warn(f"exported {events:,} events, {size:,} bytes to {file}")


@contextmanager
def _closing(out: Any) -> Iterator[Any]:
    """Close the writer; an earlier error takes precedence over one from closing."""
    try:
        yield out
    except BaseException:
        with suppress(Exception):  # libraries may raise anything for an incomplete file
            out.close()
        raise
    out.close()


@contextmanager
def _replacing(file: Path) -> Iterator[Path]:
    """Yield a temporary file's path; rename it to `file` after syncing it, or remove it on an error."""
    file = file.resolve()  # keeps a symbolic link
    part = file.with_name(file.name + _PART)
    try:
        with part.open("ab") as locked:
            _lock(locked.fileno(), part)
            yield part
            os.fsync(locked.fileno())
            part.replace(file)
            sync_folder(file.parent)
    except BaseException:  # also if interrupted before the lock was acquired
        with suppress(OSError), part.open("r+b") as locked:  # the next export reuses a file that can't be removed
            fcntl.flock(locked.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails if another export is writing it
            part.unlink()
        raise


def _lock(fd: int, part: Path) -> None:
    """Lock the file against other exports. The lock ends with the process."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_locked = os.path.samestat(os.fstat(fd), part.stat())
    except (BlockingIOError, FileNotFoundError):  # another export just ended
        is_locked = False
    if not is_locked:
        raise InvalidArgumentError(f"another export is writing {part}: wait for it, or choose another name")


def import_file(
    manager: StreamManager,
    scope: Scope,
    stream: Stream,
    file: Annotated[
        Path, typer.Argument(help="File to import, from `nadi export` or another program; `-` is standard input.")
    ],
    kind: Format = None,
    key: Annotated[str | None, typer.Option(help="Routing key of all events, replacing the keys in the file.")] = None,
    create: Create = None,
    transaction: InTransaction = False,
    quiet: Quiet = False,
) -> None:
    """Import the events of a file into a stream."""
    from nadi.charts import name_of
    from nadi.cli.events.lines import size_of

    if str(file) == "-":
        file = Path("/dev/stdin")
    file_format = format_of(file, kind)
    try:
        size = size_of([file])
        opened = opener_of(file_format).Reader(file)
    except OSError as error:
        raise InvalidArgumentError(f"can't read {file}: {error.strerror or error}") from None
    try:
        with closing(opened) as batches:
            if create is not None:
                create_missing(manager, scope, stream, create)
            with (
                bar("importing", size, quiet=quiet or size is None) as report,
                sink(manager, scope, stream, is_transaction=transaction) as to,
            ):
                for batch, read_bytes in batches:
                    segments = {segment: name_of(segment) for segment in set(batch.segment_ids) if segment is not None}
                    pairs = zip(batch.keys, batch.segment_ids, strict=True)
                    keys = [own if own is not None or segment is None else segments[segment] for own, segment in pairs]
                    to.write(batch.events, key if key is not None else keys)
                    report(read_bytes)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    if not quiet:
        warn(f"wrote {to.counts}")
