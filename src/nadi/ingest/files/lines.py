"""A file's bytes cut into events: lines, or several lines that belong together.

Where an event ends depends on the bytes alone, and on the places where it was forced to end because nothing came any
more. So whoever reads a file again from an earlier place cuts it as before, and an event's end is its number.

>>> cutter = Cutter(0)
>>> cutter.feed(b"a\\r\\nbc\\nd"), cutter.feed(b"e\\n"), cutter.done
([(3, b'a'), (6, b'bc')], [(9, b'de')], 9)
"""

from __future__ import annotations

import re

from nadi.limits import INGEST_LINE_MAX_BYTES

Cut = tuple[int, bytes]  # where an event ends in the file, and its bytes


class Cutter:
    """From the offset `at` on. starts: what the first line of an event matches, if an event may have several; a line
    that doesn't match belongs to the one before. forced: where an event has been forced to end.
    most_bytes: of an event.

    `done`: all before it was given out.
    """

    def __init__(
        self,
        at: int,
        starts: re.Pattern[bytes] | None = None,
        forced: int = 0,
        most_bytes: int = INGEST_LINE_MAX_BYTES,
    ) -> None:
        self.done = at
        self.split_lines = 0  # longer than what is allowed
        self._starts, self._forced, self._most_bytes = starts, forced, most_bytes
        self._rest = b""  # of a line that has no end yet
        self._joined: list[bytes] = []  # whole lines that others may follow
        self._joined_bytes = 0

    @property
    def at(self) -> int:
        """Where the next bytes come from."""
        return self.done + self._joined_bytes + len(self._rest)

    @property
    def whole_end(self) -> int:
        """Where the last whole line ends."""
        return self.done + self._joined_bytes

    @property
    def has_whole(self) -> bool:
        """Whether whole lines wait for others."""
        return bool(self._joined)

    @property
    def has_rest(self) -> bool:
        """Whether a line without an end waits for it."""
        return bool(self._rest)

    def feed(self, data: bytes) -> list[Cut]:
        """The events that are whole now."""
        cuts: list[Cut] = []
        until = self._forced - self.at
        if 0 < until <= len(data):
            self._take(data[:until], cuts)
            cuts += self.flush(rest=True)
            data = data[until:]
        self._take(data, cuts)
        return cuts

    def flush(self, *, rest: bool) -> list[Cut]:
        """What waits as an event, though more might come; with the line that has no end, or without it."""
        cuts: list[Cut] = []
        if rest and self._rest:
            line, self._rest = self._rest, b""
            self._take_line(line, cuts)
        self._end(cuts)
        return cuts

    def _take(self, data: bytes, cuts: list[Cut]) -> None:
        *lines, rest = (self._rest + data if self._rest else data).split(b"\n")
        self._rest = b""
        if self._starts is None and not self._joined:
            self._take_all(lines, cuts)
        else:
            for line in lines:
                self._take_line(line + b"\n", cuts)
        while len(rest) > self._most_bytes:
            self._take_line(rest[: self._most_bytes], cuts)
            rest = rest[self._most_bytes :]
            self.split_lines += 1
        self._rest = rest

    def _take_all(self, lines: list[bytes], cuts: list[Cut]) -> None:
        """Each line is an event."""
        at = self.done
        for line in lines:
            if len(line) >= self._most_bytes:
                self.done = at
                self._take_line(line + b"\n", cuts)
                at = self.done
                continue
            at += len(line) + 1
            cuts.append((at, line[:-1] if line.endswith(b"\r") else line))
        self.done = at

    def _take_line(self, line: bytes, cuts: list[Cut]) -> None:
        while len(line) > self._most_bytes:
            self._add(line[: self._most_bytes], cuts)
            line = line[self._most_bytes :]
            self.split_lines += 1
        self._add(line, cuts)

    def _add(self, line: bytes, cuts: list[Cut]) -> None:
        begins = self._starts is None or self._starts.search(line) is not None
        if begins or self._joined_bytes + len(line) > self._most_bytes:
            self._end(cuts)
        self._joined.append(line)
        self._joined_bytes += len(line)
        if self._starts is None:
            self._end(cuts)

    def _end(self, cuts: list[Cut]) -> None:
        if self._joined:
            event = b"".join(self._joined)
            self.done += len(event)
            self._joined, self._joined_bytes = [], 0
            for end in (b"\r\n", b"\n"):
                if event.endswith(end):
                    event = event[: -len(end)]
                    break
            cuts.append((self.done, event))
