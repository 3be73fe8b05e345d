"""A part of a scan that anybody can read who reaches the server.

A split in bytes and in text, which processes of other versions and on other machines are handed.

A format's number stands in front, and a reader refuses one that it doesn't know: fields of another version are never
taken for its own. What the format has is pinned by `tests/client/scan/test_split.py`.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields

import msgspec
import pyarrow as pa

from nadi.client.control.security import Basic, Bearer, Credentials, Encoded
from nadi.client.reading.damage import OnDamage
from nadi.client.scan.connection import ConnectionSettings, client_of
from nadi.client.scan.pieces import ScanRange
from nadi.client.scan.rows import Readable, ScanRows
from nadi.client.values.options import ReadTarget, ValueOptions
from nadi.errors import InvalidArgumentError
from nadi.limits import MIB
from nadi.model.event import EventBlock

FORMAT = 1
_TEXT_MAX_BYTES = 64 * MIB  # unpacked: a small text must not fill the memory
_KIND = "value"
_LOGINS: dict[str, type[Basic | Bearer | Encoded]] = {"basic": Basic, "bearer": Bearer, "encoded": Encoded}


class _Numbered(msgspec.Struct):
    """What each format has, whatever its number."""

    nadi_split: int


class _SplitValues(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    mode: str
    ddl: str | None
    version: int | None
    kind: bytes  # an Arrow schema of one field
    definition: bytes | None
    schema_id: int | None


class _Login(msgspec.Struct, forbid_unknown_fields=True):
    kind: str
    parts: tuple[str, ...]


class _SplitText(msgspec.Struct, forbid_unknown_fields=True):
    nadi_split: int
    uri: str
    trust_store: str | None
    validate_host_name: bool
    scope: str
    columns: tuple[str, ...]
    event_time_unit: str
    on_damage: OnDamage
    unnest: bool
    pieces: tuple[tuple[str, int, int, int, tuple[tuple[int, int], ...]], ...]  # those that `ScanRange` has
    values: _SplitValues | None = None
    login: _Login | None = None


def packed(
    connection: ConnectionSettings, rows: ScanRows, pieces: tuple[ScanRange, ...], *, with_credentials: bool = False
) -> bytes:
    """One split. with_credentials: InvalidArgumentError if they are a function."""
    made = _SplitText(
        FORMAT,
        connection.uri,
        connection.trust_store,
        connection.validate_host_name,
        rows.scope,
        rows.columns,
        rows.event_time_unit,
        rows.on_damage,
        rows.is_unnested,
        tuple((one.stream, one.segment_id, one.start, one.end, one.others) for one in pieces),
        _values_of(rows.target),
        _login_of(connection.credentials) if with_credentials else None,
    )
    return msgspec.json.encode(made)


def text_of(data: bytes) -> str:
    """On one line, of letters, digits, `-` and `_`, the first a letter: for any shell, file or field."""
    return base64.urlsafe_b64encode(zlib.compress(data)).decode().rstrip("=")


def data_of(text: str) -> bytes:
    """InvalidArgumentError if it is no whole text of `text_of`."""
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        inflater = zlib.decompressobj()
        data = inflater.decompress(raw, _TEXT_MAX_BYTES)
        if not inflater.eof or inflater.unused_data:
            raise ValueError("a part of it is missing")
    except (ValueError, binascii.Error, zlib.error) as error:
        raise InvalidArgumentError(
            f"{text[:40]!r} is not the text of a split ({error}): use what Split.as_text() returned"
        ) from error
    return data


def _values_of(target: ReadTarget | None) -> _SplitValues | None:
    if target is None:
        return None
    asked = target.options
    kind = pa.schema([(_KIND, target.kind)]).serialize().to_pybytes()
    return _SplitValues(asked.format, asked.mode, asked.ddl, asked.version, kind, target.definition, target.schema_id)


def _target_of(values: _SplitValues | None) -> ReadTarget | None:
    if values is None:
        return None
    kind = pa.ipc.read_schema(pa.py_buffer(values.kind)).field(_KIND).type
    options = ValueOptions(values.format, values.mode, values.ddl, values.version)
    return ReadTarget(options, kind, values.definition, values.schema_id)


def _login_of(credentials: Credentials | None) -> _Login | None:
    if credentials is None:
        return None
    kind = next(name for name, made in _LOGINS.items() if isinstance(credentials, made))
    parts = tuple(getattr(credentials, field.name) for field in fields(credentials))
    if not all(isinstance(part, str) for part in parts):
        raise InvalidArgumentError(
            "these credentials are a function, which no text can hold: leave them out, and give them to who reads"
        )
    return _Login(kind, parts)


def _credentials_of(login: _Login | None) -> Credentials | None:
    if login is None:
        return None
    made = _LOGINS.get(login.kind)
    if made is None or len(login.parts) != len(fields(made)):
        raise ValueError("its credentials are of no known kind")
    return made(*login.parts)


@dataclass(frozen=True, slots=True)
class Split(Readable):
    """A part of a scan that anybody can read who reaches the server, in any process: pickle it, and send it there. It
    has the credentials of the client that made it, those of its environment too; whoever has it can sign in with them.

    Reads like a `Scan`, by a client that its process keeps for all splits of one server.
    """

    connection: ConnectionSettings
    rows: ScanRows
    pieces: tuple[ScanRange, ...]

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

        >>> from nadi.client.scan.rows import Rows
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
        return _unpickled(data_of(text), credentials)

    def __reduce__(self) -> tuple[Callable[[bytes, Credentials | None], Split], tuple[bytes, Credentials | None]]:
        return _unpickled, (packed(self.connection, self.rows, self.pieces), self.connection.credentials)


def _unpickled(data: bytes, credentials: Credentials | None = None) -> Split:
    """What `packed` was given. credentials: instead of those that are in it, if any. InvalidArgumentError if it is of
    another version, or no split."""
    try:
        number = msgspec.json.decode(data, type=_Numbered).nadi_split
        if number != FORMAT:
            raise InvalidArgumentError(
                f"this split has format {number}, and this version of nadi reads format {FORMAT}: plan and read "
                "with the same version"
            )
        found = msgspec.json.decode(data, type=_SplitText)
        target = _target_of(found.values)
        credentials = credentials or _credentials_of(found.login)
    except (msgspec.DecodeError, pa.ArrowInvalid, ValueError) as error:
        if isinstance(error, InvalidArgumentError):
            raise
        raise InvalidArgumentError(f"this is no split ({error}): use what Split.as_text() returned") from error
    connection = ConnectionSettings(found.uri, credentials, found.trust_store, found.validate_host_name)
    rows = ScanRows(found.scope, found.columns, found.event_time_unit, target, found.on_damage, found.unnest)
    return Split(connection, rows, tuple(ScanRange(*one) for one in found.pieces))
