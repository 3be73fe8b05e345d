"""`nadi import`: the events of a file into a stream.

Events are written in the file's order, under their keys. Those without a key are written under the name of the
segment that they were in, if that is known, so that each segment's events keep their order; `--key` has all keep it.

`nadi export`: a stretch of a stream into a file.

Events are written in the order in which a reader gets them, so each key's are in order. Where they lay, segment and
offset, is written with them, and their key, if it is known: keys aren't stored, so it is one if the events are JSON and
have it in a field. The file has its name once it is whole, and on disk.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nadi.cli.bookmarks import PLACE, By, Clock, Scope, Stream, place
from nadi.cli.events.progress import progress
from nadi.cli.events.read import OnDamage
from nadi.cli.events.write import INTERRUPTED, Create, Quiet, create_missing
from nadi.cli.files.batch import Batch, Writes
from nadi.cli.files.formats import FileFormat, format_of, reading, writing
from nadi.cli.printing import warn
from nadi.cli.session import connected
from nadi.errors import InvalidArgumentError, NadiError

if TYPE_CHECKING:
    from nadi.client import StreamCuts, StreamManager
    from nadi.model.event import EventBlock
    from nadi.model.field_path import FieldPath
    from nadi.model.streamcut import StreamCut


Format = Annotated[
    FileFormat | None, typer.Option("--format", help="By default what the file's ending names.", show_default=False)
]
_PART = ".part"


@connected
def export(
    manager: StreamManager,
    scope: Scope,
    stream: Stream,
    file: Annotated[Path, typer.Argument(help="The file to write: .jsonl, .parquet or .avro.")],
    start: Annotated[
        str | None, typer.Option("--from", help=f"Where to start: {PLACE}. [default: head]", show_default=False)
    ] = None,
    end: Annotated[
        str | None, typer.Option("--to", help=f"Where to end: {PLACE}. [default: tail]", show_default=False)
    ] = None,
    by: By = Clock.ARRIVAL,
    slice_name: Annotated[
        str | None, typer.Option("--slice", help="What this named slice has.", metavar="NAME")
    ] = None,
    kind: Format = None,
    key_field: Annotated[
        str | None, typer.Option(help="Field of JSON events that has the routing key.", metavar="NAME")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if there is one.")] = False,
    on_damage: OnDamage = "raise",
    quiet: Quiet = False,
) -> None:
    """Write a stretch of a stream into a file: all of it, unless it is said from where to where."""
    if str(file) == "-":
        raise InvalidArgumentError("give a file's name: `nadi read --json` prints the lines of a .jsonl")
    wanted = format_of(file, kind)
    from nadi.model.field_path import KEY_FIELD, parse_path

    key_path = None if key_field is None else parse_path(key_field, KEY_FIELD)
    if file.exists() and not file.is_file():
        raise InvalidArgumentError(f"{file} is not a plain file: give another name")
    if file.exists() and not force:
        raise InvalidArgumentError(f"{file} is there already: give another name, or --force to replace it")
    cuts = manager.cuts(scope, stream)
    first, last = _stretch(manager, cuts, start, end, slice_name, by)
    total = cuts.bytes_between(first, last)
    about = {"scope": scope, "stream": stream, "from": first.as_text(), "to": last.as_text()}
    reader = manager.create_reader(scope, stream, start=first, end=last, on_damage=on_damage)
    events = size = done = 0
    try:
        with (
            _replacing(file) as part,
            reader,
            progress("exporting", total, quiet=quiet) as told,
            _closing(writing(part, wanted, about)) as out,
        ):
            for segment_id, block in reader:
                batch = _batch(segment_id, block, key_path)
                out.write(batch)
                events, size, done = events + len(batch), size + batch.size_bytes, done + block.size_bytes
                told(done)
    except NadiError:  # timeouts of the server are OSErrors, too
        raise
    except OSError as error:
        raise InvalidArgumentError(f"{file} can't be written: {error.strerror or error}") from None
    except KeyboardInterrupt:
        warn(f"{file} was not written")
        raise typer.Exit(INTERRUPTED) from None
    if not quiet:
        warn(f"exported {events:,} events, {size:,} bytes to {file}")


def _stretch(
    manager: StreamManager, cuts: StreamCuts, start: str | None, end: str | None, slice_name: str | None, by: Clock
) -> tuple[StreamCut, StreamCut]:
    if slice_name is None:
        return place(cuts, start or "head", by), place(cuts, end or "tail", by, end=True)
    if start is not None or end is not None:
        raise InvalidArgumentError("--from and --to have no effect with --slice, which has its own start and end")
    head = cuts.head()
    found = manager.slices(head.scope).get(slice_name)
    if found.stream != head.stream:
        raise InvalidArgumentError(f"slice {slice_name} is one of stream {found.stream}, not of {head.stream}")
    return found.start, found.end


def _batch(segment_id: int, block: EventBlock, key_path: FieldPath | None) -> Batch:
    from nadi.model.json_events import known_key_in

    events = block.events()
    keys = [None if key_path is None else known_key_in(event, key_path) for event in events]
    return Batch(events, [segment_id] * len(events), block.offsets().tolist(), keys)


@contextmanager
def _closing(out: Writes) -> Iterator[Writes]:
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
            folder = os.open(file.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
    except BaseException:  # also where it was interrupted before it could tell whose the part is
        _remove(part)
        raise


def _remove(part: Path) -> None:
    """Unless another export writes it. What can't be removed is taken over by the next one."""
    with suppress(OSError), part.open("r+b") as held:
        fcntl.flock(held.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        part.unlink()


def _hold(fd: int, part: Path) -> None:
    """Keep other exports from writing the same file. A lock goes with its process, whatever ends that."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_held = os.path.samestat(os.fstat(fd), part.stat())
    except (BlockingIOError, FileNotFoundError):  # it has just ended
        is_held = False
    if not is_held:
        raise InvalidArgumentError(f"another export writes {part} just now: wait for its end, or give another name")


@connected
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
    transaction: Annotated[
        bool, typer.Option("--transaction", help="Write all events or none: in one transaction.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Write the events of a file into a stream."""
    from nadi.cli.events.lines import size_of
    from nadi.cli.events.sink import sink

    if str(file) == "-":
        file = Path("/dev/stdin")
    wanted = format_of(file, kind)
    try:
        size = size_of([file])
        opened = reading(file, wanted)
    except OSError as error:
        raise InvalidArgumentError(f"{file} can't be read: {error.strerror or error}") from None
    try:
        with closing(opened) as found:
            if create is not None:
                create_missing(manager, scope, stream, create)
            with (
                progress("importing", size, quiet=quiet) as told,
                sink(manager, scope, stream, is_transaction=transaction) as to,
            ):
                for batch, read_bytes in found:
                    to.write(batch.events, key if key is not None else _keys(batch))
                    told(read_bytes)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    if not quiet:
        warn(f"wrote {to.told}")


def _keys(batch: Batch) -> list[str | None]:
    from nadi.charts import name_of

    names = {segment: name_of(segment) for segment in set(batch.segment_ids) if segment is not None}
    return [
        key if key is not None or segment is None else names[segment]
        for key, segment in zip(batch.keys, batch.segment_ids, strict=True)
    ]
