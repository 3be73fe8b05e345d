"""A part of a scan that anybody can read who reaches the server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from nadi.client.control.security import Credentials
from nadi.client.scan.connection import Connection, client_of
from nadi.client.scan.pieces import Piece
from nadi.client.scan.selection import Readable, Rows
from nadi.client.scan.written import data_of, packed, text_of, unpacked
from nadi.model.event import EventBlock


@dataclass(frozen=True, slots=True)
class Split(Readable):
    """A part of a scan that anybody can read who reaches the server, in any process: pickle it, and send it there. It
    has the credentials of the client that made it, those of its environment too; whoever has it can sign in with them.

    Reads like a `Scan`, by a client that its process keeps for all splits of one server.
    """

    connection: Connection
    rows: Rows
    pieces: tuple[Piece, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes in the stream, events' headers included."""
        return sum(piece.size_bytes for piece in self.pieces)

    @property
    def schema(self) -> pa.Schema:
        return self.rows.schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        return self.rows.batches(client_of(self.connection), self.pieces)

    def blocks(self) -> Iterator[tuple[int, EventBlock]]:
        """Read the events as they were written, whatever the columns: segment and block, as a reader yields them."""
        return self.rows.blocks(client_of(self.connection), self.pieces)

    def as_text(self, *, with_credentials: bool = False) -> str:
        """Return the split as one line of letters, digits, `-` and `_`, for files, shells and other programs.

        Who reads it signs in with the credentials of its own environment. with_credentials: with those that are in
        this split instead, for anybody to see who sees the text.

        >>> from nadi.client.scan.selection import Rows
        >>> split = Split(Connection("tcp://127.0.0.1:9090"), Rows("home", ("event",), "ms", None, "raise", False), ())
        >>> Split.from_text(split.as_text()) == split
        True
        """
        return text_of(packed(self.connection, self.rows, self.pieces, with_credentials=with_credentials))

    @classmethod
    def from_text(cls, text: str, *, credentials: Credentials | None = None) -> Split:
        """Return the split that `as_text` wrote. credentials: to sign in with, instead of any that are in it.

        Raises InvalidArgumentError if the text is something else, or a split of another version of nadi.
        """
        return cls(*unpacked(data_of(text), credentials))

    def __reduce__(self) -> tuple[Callable[[bytes, Credentials | None], Split], tuple[bytes, Credentials | None]]:
        return _unpickled, (packed(self.connection, self.rows, self.pieces), self.connection.credentials)


def _unpickled(data: bytes, credentials: Credentials | None) -> Split:
    return Split(*unpacked(data, credentials))
