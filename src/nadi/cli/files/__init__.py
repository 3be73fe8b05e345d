"""`nadi export` and `nadi import`: a range of a stream into a file, and the events of a file into a stream; in JSON
lines, Parquet and Avro, with a module for each.

`export` writes events in the order in which a reader gets them, so each key's are in order; with their segment and
offset, and with their key where the events are JSON and have it in a field, since keys aren't stored. The file has its
name once it is whole, and on disk.

`import` writes events in the file's order, under their keys. Those without a key are written under the name of the
segment that they were in, if that is known, so that each segment's events keep their order; `--key` has all keep it.
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


Format = Annotated[FileFormat | None, typer.Option("--format", help="By default what the file's ending names.")]
_PART = ".part"


@dataclass(frozen=True, slots=True)
class ExportBatch:
    """Events in order, by columns. segment_ids, keys: None where they aren't known."""

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
    """The one given, or the one that the file's ending names."""
    if given is not None:
        return given
    kind = _ENDINGS.get(file.suffix.lower())
    if kind is None:
        raise InvalidArgumentError(f"{file} has none of the endings {', '.join(_ENDINGS)}: say which with --format")
    return kind


def opener_of(kind: FileFormat) -> Any:
    """A format's module. Its Writer(file, about) has `write`, for a batch, and `close`, which makes the file whole;
    what it is `about` is kept in it where the format has room for that. Its Reader(file) gives batches, and how many
    bytes of the file they and all before them take, about; InvalidArgumentError: it isn't of that format."""
    return import_module(f"nadi.cli.files.{kind}")


def export(
    manager: StreamManager,
    scope: Scope,
    stream: Stream,
    file: Annotated[Path, typer.Argument(help="The file to write: .jsonl, .parquet or .avro.")],
    start: From = None,
    end: To = None,
    by: By = TimeBasis.ARRIVAL,
    slice_name: Annotated[
        str | None, typer.Option("--slice", help="What this named slice has.", metavar="NAME")
    ] = None,
    kind: Format = None,
    key_field: KeyField = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if there is one.")] = False,
    on_damage: OnDamage = "raise",
    quiet: Quiet = False,
) -> None:
    """Write a stream, a range of it or a named slice into a file."""
    if str(file) == "-":
        raise InvalidArgumentError("give a file's name: `nadi read --json` prints the lines of a .jsonl")
    wanted = format_of(file, kind)
    from nadi.model.field_path import KEY_FIELD, parse_path
    from nadi.model.json_events import known_key_in

    key_path = None if key_field is None else parse_path(key_field, KEY_FIELD)
    if file.exists() and not file.is_file():
        raise InvalidArgumentError(f"{file} is not a plain file: give another name")
    if file.exists() and not force:
        raise InvalidArgumentError(f"{file} is there already: give another name, or --force to replace it")
    cuts = manager.cuts(scope, stream)
    if slice_name is None:
        first, last = cut_at(cuts, start or "head", by), cut_at(cuts, end or "tail", by, end=True)
    elif start is not None or end is not None:
        raise InvalidArgumentError("--from and --to have no effect with --slice, which has its own start and end")
    else:
        named = manager.slices(scope).get(slice_name)
        if named.stream != stream:
            raise InvalidArgumentError(f"slice {slice_name} is one of stream {named.stream}, not of {stream}")
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
            _closing(opener_of(wanted).Writer(part, about)) as out,
        ):
            for segment_id, block in reader:
                data = block.events()
                keys = [None if key_path is None else known_key_in(event, key_path) for event in data]
                batch = ExportBatch(data, [segment_id] * len(data), block.offsets().tolist(), keys)
                out.write(batch)
                events, size, done = events + len(batch), size + batch.size_bytes, done + block.size_bytes
                report(done)
    except NadiError:  # timeouts of the server are OSErrors, too
        raise
    except OSError as error:
        raise InvalidArgumentError(f"{file} can't be written: {error.strerror or error}") from None
    except KeyboardInterrupt:
        warn(f"{file} was not written")
        raise typer.Exit(INTERRUPTED) from None
    if not quiet:
        warn(f"exported {events:,} events, {size:,} bytes to {file}")


@contextmanager
def _closing(out: Any) -> Iterator[Any]:
    """Close it; an earlier error takes precedence over one from closing."""
    try:
        yield out
    except BaseException:
        with suppress(Exception):  # whatever a library makes of a file that is cut short
            out.close()
        raise
    out.close()


@contextmanager
def _replacing(file: Path) -> Iterator[Path]:
    """Give another name beside the file's, which becomes the file's once all is on disk; or it is removed."""
    file = file.resolve()  # a link stays one
    part = file.with_name(file.name + _PART)
    try:
        with part.open("ab") as held:
            _hold(held.fileno(), part)
            yield part
            os.fsync(held.fileno())
            part.replace(file)
            sync_folder(file.parent)
    except BaseException:  # also where it was interrupted before it could tell whose the part is
        with suppress(OSError), part.open("r+b") as held:  # the next export takes over one that can't be removed
            fcntl.flock(held.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)  # unless another export writes it
            part.unlink()
        raise


def _hold(fd: int, part: Path) -> None:
    """Keep other exports from writing the same file. A lock goes with its process, whatever ends that."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_held = os.path.samestat(os.fstat(fd), part.stat())
    except (BlockingIOError, FileNotFoundError):  # it has just ended
        is_held = False
    if not is_held:
        raise InvalidArgumentError(f"another export writes {part} just now: wait for its end, or give another name")


def import_file(
    manager: StreamManager,
    file: Annotated[
        Path, typer.Argument(help="What `nadi export` wrote, or a file with events of your own; `-` is standard input.")
    ],
    scope: Scope,
    stream: Stream,
    kind: Format = None,
    key: Annotated[str | None, typer.Option(help="The routing key of all events, instead of their own.")] = None,
    create: Create = None,
    transaction: InTransaction = False,
    quiet: Quiet = False,
) -> None:
    """Write the events of a file into a stream."""
    from nadi.charts import name_of
    from nadi.cli.events.lines import size_of

    if str(file) == "-":
        file = Path("/dev/stdin")
    wanted = format_of(file, kind)
    try:
        size = size_of([file])
        opened = opener_of(wanted).Reader(file)
    except OSError as error:
        raise InvalidArgumentError(f"{file} can't be read: {error.strerror or error}") from None
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
