"""Handlers of the tests' functions, which run in separate processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from nadi.functions import Context, HandlerEvent, Reject


def echo(event: HandlerEvent) -> bytes:
    return event.data


async def echo_later(event: HandlerEvent, context: Context) -> tuple[str, bytes]:
    await asyncio.sleep(0)
    return f"key of {context.function}", event.data


def count(events: list[HandlerEvent]) -> str:
    return str(len(events))


def double(event: HandlerEvent) -> list[tuple[str, bytes]]:
    key, _, number = event.data.decode().partition(" ")
    return [(key, event.data), (key, f"{key} {number} again".encode())]


def raise_at_poison(event: HandlerEvent) -> bytes:
    if b"poison" in event.data:
        raise ValueError("no such meter")
    return event.data


def reject_poison(event: HandlerEvent) -> bytes:
    if b"poison" in event.data:
        raise Reject("not ours")
    return event.data


def batch_with_poison(events: list[HandlerEvent]) -> list[bytes]:
    if any(b"poison" in event.data for event in events):
        raise ValueError("one of these")
    return [event.data for event in events]


def die_at_poison(event: HandlerEvent) -> bytes:
    if b"poison" in event.data:
        os.kill(os.getpid(), signal.SIGKILL)
    return event.data


def exit_at_poison(event: HandlerEvent) -> bytes:
    if b"poison" in event.data:
        os._exit(3)
    return event.data


def hang_at_poison(event: HandlerEvent) -> bytes:
    if b"poison" in event.data:
        time.sleep(60)
    return event.data


def eat_memory_at_poison(event: HandlerEvent) -> bytes:
    if b"poison" in event.data:
        len(bytearray(1 << 31))
    return event.data


def third_time_lucky(event: HandlerEvent, context: Context) -> bytes:
    if b"poison" in event.data and context.attempt < 3:
        raise OSError(f"attempt {context.attempt}")
    return event.data


def returns_nonsense(event: HandlerEvent) -> object:
    return 42


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


RAISED: dict[bytes, BaseException] = {
    b"CancelledError": asyncio.CancelledError(),
    b"GeneratorExit": GeneratorExit(),
    b"KeyboardInterrupt": KeyboardInterrupt(),
    b"SystemExit": SystemExit(3),
    b"without a text": Mute(),
    b"half a character": ValueError("\udcff"),
}


def raises(event: HandlerEvent) -> object:
    if event.data in RAISED:
        raise RAISED[event.data]
    if event.data == b"half a key":
        return "\udcff", b""
    if event.data == b"too much":
        return [bytes(8_000_000)] * 9
    if event.data == b"closes stdout":
        sys.stdout.close()
    return event.data


def megabytes(event: HandlerEvent) -> bytes:
    return bytes(int(event.data) * 1_000_000)


def forks_and_dies(event: HandlerEvent) -> None:
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    Path(event.data.decode()).write_text(str(child))
    os.kill(os.getpid(), signal.SIGKILL)


def starts_and_waits(event: HandlerEvent) -> None:
    child = subprocess.Popen(["sleep", "60"])
    Path(event.data.decode()).write_text(str(child.pid))
    child.wait()


def note(event: HandlerEvent) -> bytes:
    """Append the event to the file `NOTES`, before failing if it is poisoned."""
    _append(event)
    return raise_at_poison(event)


def note_slowly(event: HandlerEvent) -> bytes:
    _append(event)
    time.sleep(0.005)
    return event.data


def note_batch(events: list[HandlerEvent]) -> list[bytes]:
    for event in events:
        _append(event)
    return batch_with_poison(events)


def note_and_die_at_poison(event: HandlerEvent) -> bytes:
    _append(event)
    return die_at_poison(event)


def _append(event: HandlerEvent) -> None:
    with open(os.environ["NOTES"], "ab", buffering=0) as file:
        file.write(event.data + b"\n")
