"""Split: a part of a scan that any process with access to the server can read; as bytes and as text.

The data starts with a format number, and a reader rejects unknown formats, so fields of another version are never
misread. `tests/client/scan/test_split.py` pins the format's contents.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields

import msgspec
import pyarrow as pa

from nadi.client.control.security import Basic, Bearer, ClientCertificate, Credentials, EncodedCredentials
from nadi.client.reading.damage import OnDamage
from nadi.client.scan.connection import ConnectionSettings, client_of
from nadi.client.scan.pieces import ScanRange
from nadi.client.scan.rows import Readable, ScanRows
from nadi.client.values.options import ReadTarget, ValueOptions
from nadi.errors import InvalidArgumentError
from nadi.limits import MIB
from nadi.model.event import EventBlock

FORMAT = 1
_TEXT_MAX_BYTES = 64 * MIB  # decompressed: a small text must not fill the memory
_KIND = "value"
_LOGINS: dict[str, type[Basic | Bearer | EncodedCredentials]] = {
    "basic": Basic,
    "bearer": Bearer,
    "encoded": EncodedCredentials,
}


class _Numbered(msgspec.Struct):
    """The part common to all formats."""

    nadi_split: int


class _SplitValues(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    mode: str
    ddl: str | None
    version: int | None
    kind: bytes  # an Arrow schema of one field
    definition: bytes | None
    schema_id: int | None


class _Login(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    kind: str = ""
    parts: tuple[str, ...] = ()
    certificate: tuple[str, str] | None = None


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
    pieces: tuple[tuple[str, int, int, int, tuple[tuple[int, int], ...]], ...]  # the fields of `ScanRange`
    values: _SplitValues | None = None
    login: _Login | None = None


def packed(
    connection: ConnectionSettings, rows: ScanRows, pieces: tuple[ScanRange, ...], *, with_credentials: bool = False
) -> bytes:
    """Encode a split. with_credentials: include them; InvalidArgumentError if they are functions."""
    split = _SplitText(
        FORMAT,
        connection.uri,
        connection.trust_store,
        connection.validate_host_name,
        rows.scope,
        rows.columns,
        rows.event_time_unit,
        rows.on_damage,
        rows.is_unnested,
        tuple((piece.stream, piece.segment_id, piece.start, piece.end, piece.others) for piece in pieces),
        _values_of(rows.target),
        _login_of(connection.credentials) if with_credentials else None,
    )
    return msgspec.json.encode(split)


def text_of(data: bytes) -> str:
    """Return one line of letters, digits, `-` and `_`, starting with a letter: safe in any shell, file or field."""
    return base64.urlsafe_b64encode(zlib.compress(data)).decode().rstrip("=")


def data_of(text: str) -> bytes:
    """Decode a text of `text_of`; InvalidArgumentError if it is incomplete or something else."""
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        inflater = zlib.decompressobj()
        data = inflater.decompress(raw, _TEXT_MAX_BYTES)
        if not inflater.eof or inflater.unused_data:
            raise ValueError("it is incomplete")
    except (ValueError, binascii.Error, zlib.error) as error:
        raise InvalidArgumentError(
            f"{text[:40]!r} is not the text of a split ({error}): pass one of `Split.as_text()` or `nadi splits`"
        ) from error
    return data


def _values_of(target: ReadTarget | None) -> _SplitValues | None:
    if target is None:
        return None
    options = target.options
    kind = pa.schema([(_KIND, target.kind)]).serialize().to_pybytes()
    return _SplitValues(
        options.format, options.mode, options.ddl, options.version, kind, target.definition, target.schema_id
    )


def _target_of(values: _SplitValues | None) -> ReadTarget | None:
    if values is None:
        return None
    kind = pa.ipc.read_schema(pa.py_buffer(values.kind)).field(_KIND).type
    options = ValueOptions(values.format, values.mode, values.ddl, values.version)
    return ReadTarget(options, kind, values.definition, values.schema_id)


def _login_of(credentials: Credentials | None) -> _Login | None:
    if credentials is None:
        return None
    if isinstance(credentials, ClientCertificate):
        login = _login_of(credentials.login) or _Login()
        login.certificate = credentials.certificate, credentials.key
        return login
    kind = next(name for name, login in _LOGINS.items() if isinstance(credentials, login))
    parts = tuple(getattr(credentials, field.name) for field in fields(credentials))
    if not all(isinstance(part, str) for part in parts):
        raise InvalidArgumentError(
            "credentials that are a function can't be part of a text: omit them, and pass them to Split.from_text"
        )
    return _Login(kind, parts)


def _credentials_of(login: _Login | None) -> Credentials | None:
    if login is None:
        return None
    if login.certificate is not None:
        return ClientCertificate(*login.certificate, _sent_credentials(login) if login.kind else None)
    return _sent_credentials(login)


def _sent_credentials(login: _Login) -> Basic | Bearer | EncodedCredentials:
    credentials_type = _LOGINS.get(login.kind)
    if credentials_type is None or len(login.parts) != len(fields(credentials_type)):
        raise ValueError("its credentials are of an unknown kind")
    return credentials_type(*login.parts)


@dataclass(frozen=True, slots=True)
class Split(Readable):
    """A part of a scan that any process with access to the server can read: pickle it and send it there.

    It contains the client's credentials, including those from its environment; any recipient can use them. Reads
    like a `Scan`, with one client per server in each process.
    """

    connection: ConnectionSettings
    rows: ScanRows
    pieces: tuple[ScanRange, ...]

    @property
    def size_bytes(self) -> int:
        """The size in the stream in bytes, including event headers."""
        return sum(piece.size_bytes for piece in self.pieces)

    @property
    def schema(self) -> pa.Schema:
        return self.rows.schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        return self.rows.batches(client_of(self.connection), self.pieces)

    def blocks(self) -> Iterator[tuple[int, EventBlock]]:
        """Read the events as written, regardless of the columns: yield segment and block, like a reader."""
        return self.rows.blocks(client_of(self.connection), self.pieces)

    def as_text(self, *, with_credentials: bool = False) -> str:
        """Return the split as one line of letters, digits, `-` and `_`, for files, shells and other programs.

        The reader uses the credentials of its own environment. with_credentials: include this split's credentials, in
        plain text.

        >>> from nadi.client.scan.rows import ScanRows
        >>> rows = ScanRows("home", ("event",), "ms", None, "raise", False)
        >>> split = Split(ConnectionSettings("tcp://127.0.0.1:9090"), rows, ())
        >>> Split.from_text(split.as_text()) == split
        True
        """
        return text_of(packed(self.connection, self.rows, self.pieces, with_credentials=with_credentials))

    @classmethod
    def from_text(cls, text: str, *, credentials: Credentials | None = None) -> Split:
        """Return the split that `as_text` wrote. credentials: used instead of those in the split.

        Raises InvalidArgumentError if the text isn't a split, or comes from another version of nadi.
        """
        return _unpickled(data_of(text), credentials)

    def __reduce__(self) -> tuple[Callable[[bytes, Credentials | None], Split], tuple[bytes, Credentials | None]]:
        return _unpickled, (packed(self.connection, self.rows, self.pieces), self.connection.credentials)


def _unpickled(data: bytes, credentials: Credentials | None = None) -> Split:
    """Decode the data of `packed`. credentials: replace those in the split, if given. InvalidArgumentError if the data
    has another version, or isn't a split."""
    try:
        number = msgspec.json.decode(data, type=_Numbered).nadi_split
        if number != FORMAT:
            raise InvalidArgumentError(
                f"this split has format {number}, but this version of nadi reads format {FORMAT}: plan and read "
                "with the same version"
            )
        split = msgspec.json.decode(data, type=_SplitText)
        target = _target_of(split.values)
        credentials = credentials or _credentials_of(split.login)
    except (msgspec.DecodeError, pa.ArrowInvalid, ValueError) as error:
        if isinstance(error, InvalidArgumentError):
            raise
        raise InvalidArgumentError(f"not a split ({error}): pass one of `Split.as_text()` or `nadi splits`") from error
    connection = ConnectionSettings(split.uri, credentials, split.trust_store, split.validate_host_name)
    rows = ScanRows(split.scope, split.columns, split.event_time_unit, target, split.on_damage, split.unnest)
    return Split(connection, rows, tuple(ScanRange(*piece) for piece in split.pieces))
