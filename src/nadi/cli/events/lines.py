"""Reads events and routing keys from standard input or files for `nadi write`: one event per line, or per file.

Each read returns the available bytes and waits only for the first, so that slow pipes aren't delayed. Memory holds at
most one block and one incomplete event.

The routing key of a line is given for all, a field's value, or the text before a separator. A `Split` takes lines and
returns events and keys up to the first invalid line; the lines before it can still be written.
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
    """A file with events, and its name in messages."""

    name: str
    file: BufferedReader


@dataclass(frozen=True, slots=True)
class Lines:
    """Consecutive lines of one input.

    first: number of the first line. read_bytes: bytes read so far from all inputs.
    """

    input_name: str
    first: int
    lines: list[bytes]
    read_bytes: int


class Splitter:
    """Splits bytes into complete lines; the last line may lack its delimiter."""

    def __init__(self, delimiter: bytes) -> None:
        self._delimiter = delimiter
        self._partial: list[bytes] = []  # pieces of an incomplete line
        self._partial_bytes = 0
        self._edge = b""  # the last bytes, which may be the start of a delimiter

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that end in `data`; EventTooLargeError if one is too long."""
        edge, spare = self._edge, len(self._delimiter) - 1
        self._partial.append(data)
        self._partial_bytes += len(data)
        if self._delimiter not in edge + data:
            self._edge = (edge + data)[-spare:] if spare else b""
            self._check(self._partial_bytes)
            return []
        *lines, remainder = b"".join(self._partial).split(self._delimiter)
        self._check(len(lines[0]))  # the others are within one block
        self._partial, self._partial_bytes = [remainder], len(remainder)
        self._edge = remainder[-spare:] if spare else b""
        return lines

    def end(self) -> list[bytes]:
        remainder = b"".join(self._partial)
        self._partial, self._partial_bytes, self._edge = [], 0, b""
        return [remainder] if remainder else []

    @staticmethod
    def _check(size: int) -> None:
        if size > MAX_LARGE_EVENT_BYTES:
            raise EventTooLargeError(size, MAX_LARGE_EVENT_BYTES)


def opened(files: Sequence[Path], within: ExitStack) -> list[Input]:
    """Open all inputs before anything is written; `-` or no file is standard input."""
    inputs = []
    for file in files or [Path("-")]:
        if str(file) == "-":
            inputs.append(Input("standard input", cast("BufferedReader", sys.stdin.buffer)))
            continue
        try:
            inputs.append(Input(str(file), within.enter_context(file.open("rb"))))
        except OSError as error:
            raise InvalidArgumentError(f"can't read {file}: {error.strerror}") from None
    return inputs


def lines_of(inputs: Sequence[Input], delimiter: bytes) -> Iterator[Lines]:
    """Yield the lines of all inputs in blocks."""
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


def whole_files(inputs: Sequence[Input]) -> Iterator[Lines]:
    """Yield each input as one event."""
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
    """Return the total size of the files; None if one isn't a regular file."""
    if not files or not all(file.is_file() for file in files):
        return None
    return sum(file.stat().st_size for file in files)


def _read(each: Input) -> bytes:
    try:
        return each.file.read1(_BLOCK_BYTES)
    except OSError as error:
        raise InvalidArgumentError(f"can't read the rest of {each.name}: {error.strerror}") from None


# --- routing keys ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KeyedEvents:
    """Events, and one routing key for all or one for each. fault: the problem of the line after them."""

    events: list[bytes]
    keys: list[str | None] | str | None
    fault: str = ""


Split = Callable[[list[bytes]], KeyedEvents]


def split_of(key: str | None, field: str | None, separator: bytes | None, *, is_json: bool) -> Split:
    """Return the split for --key, --key-field, --key-separator and --json."""
    choose_one(key=key is not None, key_field=field is not None, key_separator=separator is not None)
    path = None if field is None else parse_path(field, KEY_FIELD)
    if path is None and separator is None and not is_json:
        return lambda lines: KeyedEvents(lines, key)

    def keyed(line: bytes) -> tuple[str | None, bytes]:
        if path is not None:
            line = with_whole_characters(line) if is_json else line
            return key_in(line, path), line
        if separator is None:
            return key, checked(line)
        before, between, event = line.partition(separator)
        if not between:
            text = separator.decode(errors="replace")
            raise InvalidArgumentError(f"it lacks the separator {text!r} after the key")
        event = checked(event) if is_json else event
        try:
            return before.decode(), event
        except UnicodeDecodeError:
            raise InvalidArgumentError("its key is not UTF-8") from None

    def split(lines: list[bytes]) -> KeyedEvents:
        events: list[bytes] = []
        keys: list[str | None] = []
        for line in lines:
            try:
                key_of_line, event = keyed(line)
            except InvalidArgumentError as error:
                fault = f"it is {error}" if isinstance(error, NotJsonError) else str(error)
                return KeyedEvents(events, keys, fault)
            events.append(event)
            keys.append(key_of_line)
        return KeyedEvents(events, keys)

    return split
