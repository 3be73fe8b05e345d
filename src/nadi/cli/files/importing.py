"""`nadi import`: the events of a file into a stream.

Events are written in the file's order, under their keys. Those without a key are written under the name of the
segment that they were in, if that is known, so that each segment's events keep their order; `--key` has all keep it.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nadi.cli.bookmarks import Scope, Stream
from nadi.cli.events.progress import progress
from nadi.cli.events.write import INTERRUPTED, Create, Quiet, create_missing
from nadi.cli.files.batch import Batch
from nadi.cli.files.exporting import Format
from nadi.cli.files.formats import format_of, reading
from nadi.cli.printing import warn
from nadi.cli.session import connected
from nadi.errors import InvalidArgumentError

if TYPE_CHECKING:
    from nadi.client import StreamManager


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
    from nadi.pictures.text import name_of

    names = {segment: name_of(segment) for segment in set(batch.segment_ids) if segment is not None}
    return [
        key if key is not None or segment is None else names[segment]
        for key, segment in zip(batch.keys, batch.segment_ids, strict=True)
    ]
