"""Log lines of some services, as a log shipper sends them, and the errors in them by plain computation.

A line is text: the times of receipt and of writing, the host, the service, the level, the message.

>>> event = b"2026-11-14T12:00:01.500Z 2026-11-14T12:00:00.250Z web-1 search ERROR shard 7 gave up after 310 ms"
>>> line = read(event)
>>> line.service, line.received - line.at, pattern(line.message)
('search', 1250, 'shard # gave up after # ms')

Errors are counted by service, pattern and five-minute window of the time at which the service wrote the line. A line
may be late, up to LATE_MS after it was written. A later one is not counted in its window, whose count may have been
written already: it is counted as TOO_LATE, in the window of its receipt. That depends on the line alone, not on what
was read before, so the result is the same however often a job is restarted.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

WINDOW_MS = 5 * 60_000
LATE_MS = 2 * 60_000  # a line that comes later than this is too late
SHUFFLED_MS = 30_000  # shippers don't wait for each other: the maximum disorder of stored lines
WRITTEN_MS = 20_000  # written at once, so possibly readable in one segment before another
WATERMARK_MS = LATE_MS + SHUFFLED_MS + 2 * WRITTEN_MS  # no line in time is that far behind the latest one
TOO_LATE = "too late"
VARIABLE = r"\b[0-9a-f]*[0-9][0-9a-f]*\b"  # numbers, ids: the variable parts of a pattern
START = int(datetime(2026, 11, 14, 12, tzinfo=UTC).timestamp()) * 1000

_MESSAGES = {
    "checkout": ("payment gateway timed out after {n} ms", "order {id}: stock of item {n} is negative"),
    "payments": ("card of customer {n} declined by issuer {n}", "connection {id} reset by peer"),
    "search": ("shard {n} gave up after {n} ms", "query {id} needs {n} MB and may use 64"),
    "mail": ("mailbox {n} is full", "greeting of relay {n} timed out after {n} ms"),
    "login": ("token {id} has expired", "customer {n} locked after {n} failures"),
}
SERVICES = tuple(_MESSAGES)
_HARMLESS = ("request {id} done in {n} ms", "cache of {n} entries cleaned", "customer {n} came back")

Found = tuple[str, str, str]  # the window's start in UTC, such as "2026-11-14T12:05Z"; service; pattern or TOO_LATE


@dataclass(frozen=True, slots=True)
class Line:
    """A line; times are in ms since 1970."""

    received: int
    at: int
    host: str
    service: str
    level: str
    message: str

    def event(self) -> bytes:
        return f"{_iso(self.received)} {_iso(self.at)} {self.host} {self.service} {self.level} {self.message}".encode()


def read(event: bytes) -> Line | None:
    """Parse an event; return None if it isn't a line, but part of a stack trace, say."""
    parts = event.decode().split(" ", 5)
    if len(parts) < 6:
        return None
    try:
        return Line(_ms(parts[0]), _ms(parts[1]), *parts[2:])
    except ValueError:
        return None


def pattern(message: str) -> str:
    """Return the constant parts of a message."""
    return re.sub(VARIABLE, "#", message)


def counted(events: Iterable[bytes]) -> tuple[dict[Found, int], dict[Found, int]]:
    """Count the errors of some events: in finished windows, by the latest line, and in unfinished ones."""
    counts: Counter[tuple[int, str, str]] = Counter()
    latest = 0
    for line in map(read, events):
        if line is None or line.level != "ERROR":
            continue
        is_late = line.received - line.at > LATE_MS
        time, kind = (line.received, TOO_LATE) if is_late else (line.at, pattern(line.message))
        latest = max(latest, time)
        counts[time - time % WINDOW_MS, line.service, kind] += 1
    over: dict[Found, int] = {}
    growing: dict[Found, int] = {}
    for (start, service, kind), count in sorted(counts.items()):
        counts_of_window = over if start + WINDOW_MS <= latest - WATERMARK_MS else growing
        counts_of_window[f"{_iso(start)[:16]}Z", service, kind] = count
    return over, growing


def generated(minutes: float, a_minute: int, seed: int = 1) -> Iterator[Line]:
    """Return lines in the order of storage, `a_minute` of them per minute.

    One in twenty is late and one in two hundred too late; every line is stored up to SHUFFLED_MS out of order. One in
    twelve is an error, and one in three while a service is in trouble, for some minutes at times.
    """
    chance = random.Random(seed)
    length = int(minutes * 60_000)
    troubles = [
        (service, chance.randrange(max(1, length))) for service in SERVICES for _ in range(length // 1_200_000 + 1)
    ]
    lines: list[tuple[int, Line]] = []
    for _ in range(int(minutes * a_minute)):
        at = chance.randrange(length)
        service = chance.choice(SERVICES)
        is_in_trouble = any(service == troubled and 0 <= at - begin < 240_000 for troubled, begin in troubles)
        is_error = chance.random() < (1 / 3 if is_in_trouble else 1 / 12)
        message = chance.choice(_MESSAGES[service] if is_error else _HARMLESS)
        while "{" in message:
            message = message.replace("{n}", str(chance.randrange(1, 9_999)), 1)
            message = message.replace("{id}", f"{chance.getrandbits(32):08x}", 1)
        received = START + at + _delay(chance)
        host = f"{service}-{chance.randrange(1, 4)}"
        line = Line(received, START + at, host, service, "ERROR" if is_error else "INFO", message)
        lines.append((received + chance.randrange(SHUFFLED_MS), line))
    lines.sort(key=lambda pair: pair[0])
    return (line for _, line in lines)


def _delay(chance: random.Random) -> int:
    kind = chance.random()
    if kind < 0.005:
        return LATE_MS + chance.randrange(1, 900_000)
    return chance.randrange(5_000, LATE_MS + 1) if kind < 0.055 else chance.randrange(1_500)


def _iso(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _ms(text: str) -> int:
    parsed = datetime.fromisoformat(text)
    if parsed.tzinfo is None:
        raise ValueError(f"{text} lacks a time zone")
    return round(parsed.timestamp() * 1000)
