"""JSON lines in the form of `nadi read --json`: an event is `text`, or `base64` if it isn't valid UTF-8."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from pathlib import Path

import msgspec

from nadi.cli.events.lines import Input, lines_of
from nadi.cli.files import ExportBatch
from nadi.errors import InvalidArgumentError
from nadi.model.json_events import key_of, with_whole_characters


class _Row(msgspec.Struct, omit_defaults=True):
    segment_id: int | None = None
    offset: int | None = None
    key: str | None = None
    text: str | None = None
    base64: str | None = None


class _JsonRow(msgspec.Struct):
    """A row as any program may have written it."""

    segment_id: int | None = None
    key: msgspec.Raw = msgspec.Raw(b"null")
    text: str | None = None
    base64: str | None = None


class Writer:
    def __init__(self, file: Path, about: dict[str, str]) -> None:
        self._file = file.open("wb")
        self._encoder = msgspec.json.Encoder()

    def write(self, batch: ExportBatch) -> None:
        rows = zip(batch.segment_ids, batch.offsets, batch.keys, batch.events, strict=True)
        self._file.write(self._encoder.encode_lines([_row(*row) for row in rows]))

    def close(self) -> None:
        self._file.close()


class Reader:
    def __init__(self, file: Path) -> None:
        self._name = str(file)
        self._file = file.open("rb")

    def __iter__(self) -> Iterator[tuple[ExportBatch, int]]:
        for block in lines_of([Input(self._name, self._file)], b"\n"):
            batch = ExportBatch([], [], [], [])
            for number, line in enumerate(block.lines, block.first):
                try:
                    row = _decode(with_whole_characters(line))
                    key, event = key_of(bytes(row.key), "key"), _event(row)
                except (msgspec.DecodeError, binascii.Error, ValueError) as error:
                    yield batch, block.read_bytes  # the events before it
                    raise InvalidArgumentError(f"line {number:,} of {self._name} is not an event: {error}") from None
                batch.events.append(event)
                batch.segment_ids.append(row.segment_id)
                batch.offsets.append(None)
                batch.keys.append(key)
            yield batch, block.read_bytes

    def close(self) -> None:
        self._file.close()


_decode = msgspec.json.Decoder(_JsonRow).decode


def _row(segment_id: int | None, offset: int | None, key: str | None, event: bytes) -> _Row:
    try:
        return _Row(segment_id, offset, key, text=event.decode())
    except UnicodeDecodeError:
        return _Row(segment_id, offset, key, base64=base64.b64encode(event).decode())


def _event(row: _JsonRow) -> bytes:
    if row.text is not None and row.base64 is not None:
        raise ValueError("it has both `text` and `base64`: remove one of them")
    if row.text is not None:
        return row.text.encode()
    if row.base64 is not None:
        return base64.b64decode(row.base64, validate=True)
    raise ValueError("it has neither `text` nor `base64`: to store lines as they are, use `nadi write`")
