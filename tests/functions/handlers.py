"""Handlers of the tests' functions: each runs in a process of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import time

from nadi.functions import Context, Event, Reject


def echo(event: Event) -> bytes:
    return event.data


async def echo_later(event: Event, context: Context) -> tuple[str, bytes]:
    await asyncio.sleep(0)
    return f"key of {context.function}", event.data


def count(events: list[Event]) -> str:
    return str(len(events))


def double(event: Event) -> list[tuple[str, bytes]]:
    key, _, number = event.data.decode().partition(" ")
    return [(key, event.data), (key, f"{key} {number} again".encode())]


def raise_at_poison(event: Event) -> bytes:
    if b"poison" in event.data:
        raise ValueError("no such meter")
    return event.data


def reject_poison(event: Event) -> bytes:
    if b"poison" in event.data:
        raise Reject("not ours")
    return event.data


def batch_with_poison(events: list[Event]) -> list[bytes]:
    if any(b"poison" in event.data for event in events):
        raise ValueError("one of these")
    return [event.data for event in events]


def die_at_poison(event: Event) -> bytes:
    if b"poison" in event.data:
        os.kill(os.getpid(), signal.SIGKILL)
    return event.data


def exit_at_poison(event: Event) -> bytes:
    if b"poison" in event.data:
        os._exit(3)
    return event.data


def hang_at_poison(event: Event) -> bytes:
    if b"poison" in event.data:
        time.sleep(60)
    return event.data


def eat_memory_at_poison(event: Event) -> bytes:
    if b"poison" in event.data:
        len(bytearray(1 << 31))
    return event.data


def third_time_lucky(event: Event, context: Context) -> bytes:
    if b"poison" in event.data and context.attempt < 3:
        raise OSError(f"attempt {context.attempt}")
    return event.data


def returns_nonsense(event: Event) -> object:
    return 42
