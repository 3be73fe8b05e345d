"""Events from standard input or files, as `nadi write` takes them: one a line, or one a file; and their routing keys.

Input that comes slowly, through a pipe, is passed on as it comes: each read takes the bytes that are there, and waits
only for the first. Memory has one block at most, and one event that has not ended.

The routing key of a line is that of all, a field's value, or the text before a separator. A `Split` takes lines and
gives events and keys, up to the first line that has none; the lines before that can still be written.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import cast

from nadi.cli.session import choose_one
from nadi.errors import EventTooLargeError, InvalidArgumentError
from nadi.limits import MAX_LARGE_EVENT_BYTES, MIB
from nadi.model.field_path import KEY_FIELD, parse_path
from nadi.model.json_events import NotJsonError, checked, key_in, with_whole_characters

_BLOCK_BYTES = MIB


@dataclass(frozen=True, slots=True)
class Input:
    """Where events come from, by the name that people know."""

    name: str
    file: BufferedReader


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines of one input that follow each other.

    first: the number of the first. read_bytes: of all inputs, up to here.
    """

    input_name: str
    first: int
    lines: list[bytes]
    read_bytes: int


class Splitter:
    """Bytes in, whole lines out; the last one needs no delimiter."""

    def __init__(self, delimiter: bytes) -> None:
        self._delimiter = delimiter
        self._begun: list[bytes] = []  # of a line that has not ended
        self._begun_bytes = 0
        self._edge = b""  # its last bytes, which may be the start of a delimiter

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that end in `data`; EventTooLargeError if one is too long."""
        edge, spare = self._edge, len(self._delimiter) - 1
        self._begun.append(data)
        self._begun_bytes += len(data)
        if self._delimiter not in edge + data:
            self._edge = (edge + data)[-spare:] if spare else b""
            self._check(self._begun_bytes)
            return []
        *lines, rest = b"".join(self._begun).split(self._delimiter)
        self._check(len(lines[0]))  # the others lie within a block
        self._begun, self._begun_bytes = [rest], len(rest)
        self._edge = rest[-spare:] if spare else b""
        return lines

    def end(self) -> list[bytes]:
        rest = b"".join(self._begun)
        self._begun, self._begun_bytes, self._edge = [], 0, b""
        return [rest] if rest else []

    @staticmethod
    def _check(size: int) -> None:
        if size > MAX_LARGE_EVENT_BYTES:
            raise EventTooLargeError(size, MAX_LARGE_EVENT_BYTES)


def opened(files: Sequence[Path], within: ExitStack) -> list[Input]:
    """The inputs, all of them opened before anything is written; `-`, or none, is standard input."""
    inputs = []
    for file in files or [Path("-")]:
        if str(file) == "-":
            inputs.append(Input("standard input", cast("BufferedReader", sys.stdin.buffer)))
            continue
        try:
            inputs.append(Input(str(file), within.enter_context(file.open("rb"))))
        except OSError as error:
            raise InvalidArgumentError(f"{file} can't be read: {error.strerror}") from None
    return inputs


def lines_of(inputs: Sequence[Input], delimiter: bytes) -> Iterator[Lines]:
    """The lines of all inputs, a block at a time."""
    read_bytes = 0
    for each in inputs:
        splitter, number = Splitter(delimiter), 1
        while data := _read(each):
            read_bytes += len(data)
            if lines := splitter.feed(data):
                yield Lines(each.name, number, lines, read_bytes)
                number += len(lines)
        if lines := splitter.end():
            yield Lines(each.name, number, lines, read_bytes)


def wholes_of(inputs: Sequence[Input]) -> Iterator[Lines]:
    """Each input as one event."""
    read_bytes = 0
    for each in inputs:
        parts, size = [], 0
        while data := _read(each):
            parts.append(data)
            size += len(data)
            if size > MAX_LARGE_EVENT_BYTES:
                raise EventTooLargeError(size, MAX_LARGE_EVENT_BYTES)
        read_bytes += size
        yield Lines(each.name, 1, [b"".join(parts)], read_bytes)


def size_of(files: Sequence[Path]) -> int | None:
    """The bytes of all files; None if one of them isn't a plain file."""
    if not files or not all(file.is_file() for file in files):
        return None
    return sum(file.stat().st_size for file in files)


def _read(each: Input) -> bytes:
    try:
        return each.file.read1(_BLOCK_BYTES)
    except OSError as error:
        raise InvalidArgumentError(f"{each.name} can't be read further: {error.strerror}") from None


# --- their keys ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Keyed:
    """Events and their routing keys: one for all, or one for each. fault: why the line after them is not an event."""

    events: list[bytes]
    keys: list[str | None] | str | None
    fault: str = ""


Split = Callable[[list[bytes]], Keyed]


def split_of(key: str | None, field: str | None, separator: bytes | None, *, is_json: bool) -> Split:
    """The split that the options --key, --key-field, --key-separator and --json describe."""
    choose_one(key=key is not None, key_field=field is not None, key_separator=separator is not None)
    path = None if field is None else parse_path(field, KEY_FIELD)
    if path is None and separator is None and not is_json:
        return lambda lines: Keyed(lines, key)

    def keyed(line: bytes) -> tuple[str | None, bytes]:
        if path is not None:
            line = with_whole_characters(line) if is_json else line
            return key_in(line, path), line
        if separator is None:
            return key, checked(line)
        before, between, event = line.partition(separator)
        if not between:
            text = separator.decode(errors="replace")
            raise InvalidArgumentError(f"it has no separator {text!r} after a key")
        event = checked(event) if is_json else event
        try:
            return before.decode(), event
        except UnicodeDecodeError:
            raise InvalidArgumentError("its key is not UTF-8") from None

    def split(lines: list[bytes]) -> Keyed:
        events: list[bytes] = []
        keys: list[str | None] = []
        for line in lines:
            try:
                its_key, event = keyed(line)
            except InvalidArgumentError as error:
                fault = f"it is {error}" if isinstance(error, NotJsonError) else str(error)
                return Keyed(events, keys, fault)
            events.append(event)
            keys.append(its_key)
        return Keyed(events, keys)

    return split
