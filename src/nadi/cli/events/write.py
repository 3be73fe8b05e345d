"""`nadi write`: events from standard input or files into a stream, and how many of them are known to be stored."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nadi.cli.options import Create, InTransaction, KeyField, Quiet, Scope, Stream
from nadi.cli.printing import INTERRUPTED, bar, warn
from nadi.cli.session import check_absent
from nadi.errors import InvalidArgumentError, NadiError, ScopeNotFoundError

if TYPE_CHECKING:
    from nadi.client import Ack, EventWriter, StreamManager, Transaction

_LAST_WORD_S = 5.0  # after Ctrl-C, or an error, for what is under way


def write(
    manager: StreamManager,
    scope: Scope,
    stream: Stream,
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="Files with events; `-`, or none, is standard input.", metavar="[FILE...]"),
    ] = None,
    key: Annotated[str | None, typer.Option(help="The routing key of all events.")] = None,
    key_field: KeyField = None,
    key_separator: Annotated[
        str | None, typer.Option(help=r"Each line is a key, this (`:` or `\t`, say), and the event.", metavar="TEXT")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Each event must be JSON: at one that isn't, writing stops.")
    ] = False,
    delimiter: Annotated[
        str | None, typer.Option(help=r"What ends an event instead of a newline, `\0`, say.", metavar="TEXT")
    ] = None,
    whole: Annotated[bool, typer.Option("--whole", help="Each FILE is one event, a picture, say.")] = False,
    create: Create = None,
    transaction: InTransaction = False,
    into: Annotated[
        str | None,
        typer.Option(help="Write into this transaction, which `nadi transaction commit` commits.", metavar="ID"),
    ] = None,
    lease: Annotated[
        str | None,
        typer.Option(help="How long that transaction then lasts without a `nadi transaction ping`. [default: 10min]"),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Write events from standard input or files, one a line; empty lines are events too.

    Events that come slowly through a pipe are sent as they come. At the end, or at an error, it prints how many are
    stored.
    """
    from nadi.cli.amounts import age_s
    from nadi.cli.events.lines import lines_of, opened, size_of, split_of, wholes_of
    from nadi.cli.events.printer import unescaped

    split = split_of(key, key_field, unescaped(key_separator) if key_separator is not None else None, is_json=as_json)
    if whole:
        useless = {"delimiter": delimiter is not None, "key_separator": key_separator is not None}
        check_absent("has no effect with --whole, for files are not cut into lines", **useless)
    if into is None:
        check_absent("has no effect without --into, which names a transaction", lease=lease is not None)
    else:
        is_there = "has no effect with --into, for that transaction is there already"
        check_absent(is_there, transaction=transaction, create=create is not None)
    lease_ms = round(age_s(lease or "10min") * 1000)
    between = unescaped(delimiter) if delimiter is not None else b"\n"
    with ExitStack() as within:
        inputs = opened(files or [], within)
        if create is not None:
            create_missing(manager, scope, stream, create)
        if not files and sys.stdin.isatty() and not quiet:
            warn("each line is an event; Ctrl-D ends")
        size = size_of(files or [])
        blocks = wholes_of(inputs) if whole else lines_of(inputs, between)
        report = within.enter_context(bar("writing", size, quiet=quiet or size is None))
        try:
            with sink(manager, scope, stream, is_transaction=transaction, into=into, lease_ms=lease_ms) as to:
                for block in blocks:
                    keyed = split(block.lines)
                    to.write(keyed.events, keyed.keys)
                    report(block.read_bytes)
                    if keyed.fault:
                        line = block.first + len(keyed.events)
                        raise InvalidArgumentError(
                            f"line {line:,} of {block.input_name} is not an event: {keyed.fault}"
                        )
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
    if not quiet:
        warn(f"wrote {to.counts}")


def create_missing(manager: StreamManager, scope: str, stream: str, segments: int) -> None:
    try:
        manager.create_stream(scope, stream, segments)
    except ScopeNotFoundError:
        manager.create_scope(scope)
        manager.create_stream(scope, stream, segments)


# --- what is stored --------------------------------------------------------------------------------------


class Sink:
    """Takes lists of events, and counts those that are acknowledged."""

    def __init__(self, writer: EventWriter | Transaction) -> None:
        self._writer = writer
        self._under_way: deque[tuple[Ack, int, int]] = deque()  # with numbers of events and bytes; the writer limits it
        self.events = self.size_bytes = 0

    def write(self, events: list[bytes], keys: str | Sequence[str | None] | None) -> None:
        """Hand them over, waiting for room; raise what kept earlier ones from being stored."""
        if events:
            ack = self._writer.write_batch(events, keys)
            self._under_way.append((ack, len(events), sum(map(len, events))))
        while self._under_way and self._under_way[0][0].done():
            self._under_way[0][0].result(0)
            self._count(*self._under_way.popleft())

    def finish(self, timeout: float | None = None) -> None:
        """Return once all are stored."""
        self._writer.flush(timeout)
        self.write([], None)

    def end(self) -> int:
        """Count what is acknowledged by now; how many others there are, of which nobody knows."""
        from nadi.client.writing.ack import is_stored

        unknown = 0
        while self._under_way:
            ack, events, size_bytes = self._under_way.popleft()
            if is_stored(ack):
                self._count(ack, events, size_bytes)
            else:
                unknown += events
        return unknown

    def _count(self, _: Ack, events: int, size_bytes: int) -> None:
        self.events += events
        self.size_bytes += size_bytes

    @property
    def counts(self) -> str:
        return f"{self.events:,} event{'s' * (self.events != 1)}, {self.size_bytes:,} bytes"


@contextmanager
def sink(
    manager: StreamManager,
    scope: str,
    stream: str,
    *,
    is_transaction: bool = False,
    into: str | None = None,
    lease_ms: int = 0,
) -> Iterator[Sink]:
    """Open one for the events of a command. However that ends, it waits for all events that were handed over, and
    prints on standard error how many are acknowledged if those aren't all. into: the id of a transaction, which has a
    lease of `lease_ms` from then on."""
    if is_transaction:
        with manager.create_transaction_writer(scope, stream) as writer:
            txn = writer.begin_txn()
            to = Sink(txn)
            try:
                yield to
                to.finish()
                txn.commit(wait=True)
            except BaseException:
                became = "will be aborted when its lease ends"
                try:
                    with suppress(NadiError):
                        txn.abort(timeout=_LAST_WORD_S)
                        became = "was aborted"
                finally:  # also when interrupted again
                    warn(f"nothing was written: the transaction {became}")
                raise
        return
    with ExitStack() as within:
        if into is None:
            events = within.enter_context(manager.create_writer(scope, stream))
            to = Sink(events)
        else:
            events = None  # what is in a transaction needs no closing
            txns = manager.create_transaction_writer(scope, stream, lease_ms=lease_ms)
            to = Sink(within.enter_context(txns).get_txn(into))
        try:
            yield to
            to.finish()
        except BaseException:
            try:
                with suppress(NadiError):
                    to.finish(_LAST_WORD_S)
            finally:  # also when interrupted again
                unknown = to.end()
                more = f"; {unknown:,} more may be stored, or not" if unknown else ""
                warn(f"wrote {to.counts}{more}")
                if events is not None:
                    with suppress(NadiError):
                        events.close(0)  # it was waited for
            raise
