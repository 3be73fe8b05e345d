"""`nadi write`: write events from standard input or files, and report how many were acknowledged."""

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
from nadi.naming import plural

if TYPE_CHECKING:
    from nadi.client import Ack, EventWriter, StreamManager, Transaction

_DRAIN_S = 5.0  # wait for pending events after Ctrl-C or an error


def write(
    manager: StreamManager,
    scope: Scope,
    stream: Stream,
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="Files with events; `-` or none reads standard input.", metavar="[FILE...]"),
    ] = None,
    key: Annotated[str | None, typer.Option(help="Routing key of all events.")] = None,
    key_field: KeyField = None,
    key_separator: Annotated[
        str | None,
        typer.Option(help=r"Separator between key and event in each line, such as `:` or `\t`.", metavar="TEXT"),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Check that events are JSON; stop at the first that isn't.")
    ] = False,
    delimiter: Annotated[
        str | None, typer.Option(help=r"Delimiter of events instead of a newline, such as `\0`.", metavar="TEXT")
    ] = None,
    whole: Annotated[bool, typer.Option("--whole", help="Write each FILE as one event.")] = False,
    create: Create = None,
    transaction: InTransaction = False,
    into: Annotated[
        str | None,
        typer.Option(help="Write to this open transaction; commit it with `nadi transaction commit`.", metavar="ID"),
    ] = None,
    lease: Annotated[
        str | None,
        typer.Option(help="New lease of that transaction, until a `nadi transaction ping`. (default: 10min)"),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Write events from standard input or files, one per line. Empty lines are events, too.

    Events from a slow pipe are sent as they arrive. At the end or on an error, it prints how many events are stored.
    """
    from nadi.cli.amounts import age_s
    from nadi.cli.events.lines import lines_of, opened, size_of, split_of, whole_files
    from nadi.cli.events.printer import unescaped

    split = split_of(key, key_field, unescaped(key_separator) if key_separator is not None else None, is_json=as_json)
    if whole:
        excluded = {"delimiter": delimiter is not None, "key_separator": key_separator is not None}
        check_absent("can't be used with --whole, which doesn't split files into lines", **excluded)
    if into is None:
        check_absent("can't be used without --into", lease=lease is not None)
    else:
        check_absent(
            "can't be used with --into, which names an existing transaction",
            transaction=transaction,
            create=create is not None,
        )
    lease_ms = round(age_s(lease or "10min") * 1000)
    between = unescaped(delimiter) if delimiter is not None else b"\n"
    with ExitStack() as within:
        inputs = opened(files or [], within)
        if create is not None:
            create_missing(manager, scope, stream, create)
        if not files and sys.stdin.isatty() and not quiet:
            warn("reading events from the terminal, one per line; end with Ctrl-D")
        size = size_of(files or [])
        blocks = whole_files(inputs) if whole else lines_of(inputs, between)
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


# --- acknowledgements ------------------------------------------------------------------------------------


class Sink:
    """Writes lists of events and counts acknowledged ones."""

    def __init__(self, writer: EventWriter | Transaction) -> None:
        self._writer = writer
        self._pending: deque[tuple[Ack, int, int]] = deque()  # with events and bytes; the writer limits its size
        self.events = self.size_bytes = 0

    def write(self, events: list[bytes], keys: str | Sequence[str | None] | None) -> None:
        """Write events, waiting for capacity; raise errors of earlier writes."""
        if events:
            ack = self._writer.write_batch(events, keys)
            self._pending.append((ack, len(events), sum(map(len, events))))
        while self._pending and self._pending[0][0].done():
            self._pending[0][0].result(0)
            self._count(*self._pending.popleft())

    def finish(self, timeout: float | None = None) -> None:
        """Wait until all events are stored."""
        self._writer.flush(timeout)
        self.write([], None)

    def end(self) -> int:
        """Count acknowledged events; return the number of events whose outcome is unknown."""
        from nadi.client.writing.ack import is_stored, was_refused

        unknown = 0
        while self._pending:
            ack, events, size_bytes = self._pending.popleft()
            if is_stored(ack):
                self._count(ack, events, size_bytes)
            elif not was_refused(ack):
                unknown += events
        return unknown

    def _count(self, _: Ack, events: int, size_bytes: int) -> None:
        self.events += events
        self.size_bytes += size_bytes

    @property
    def counts(self) -> str:
        return f"{plural(self.events, 'event')}, {self.size_bytes:,} bytes"


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
    """Open a sink. On exit it waits for pending events; if the command fails, it prints the number of acknowledged
    events on standard error. into: id of a transaction, whose lease is set to `lease_ms`."""
    if is_transaction:
        with manager.create_transaction_writer(scope, stream) as writer:
            txn = writer.begin_txn()
            to = Sink(txn)
            try:
                yield to
                to.finish()
                txn.commit(wait=True)
            except BaseException:
                outcome = "will be aborted when its lease ends"
                try:
                    with suppress(NadiError):
                        txn.abort(timeout=_DRAIN_S)
                        outcome = "was aborted"
                finally:  # also when interrupted again
                    warn(f"nothing was written: the transaction {outcome}")
                raise
        return
    with ExitStack() as within:
        if into is None:
            events = within.enter_context(manager.create_writer(scope, stream))
            to = Sink(events)
        else:
            events = None  # a transaction's writer needs no closing
            txns = manager.create_transaction_writer(scope, stream, lease_ms=lease_ms)
            to = Sink(within.enter_context(txns).get_txn(into))
        try:
            yield to
            to.finish()
        except BaseException:
            try:
                with suppress(NadiError):
                    to.finish(_DRAIN_S)
            finally:  # also when interrupted again
                unknown = to.end()
                more = f"; {unknown:,} more may have been stored" if unknown else ""
                warn(f"wrote {to.counts}{more}")
                if events is not None:
                    with suppress(NadiError):
                        events.close(0)  # already waited for
            raise
