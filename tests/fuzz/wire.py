"""The wire protocol under fuzz: the decoder alone, and the port of a live server."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from enum import Enum

from nadi.errors import ProtocolError
from nadi.wire import commands as wire
from nadi.wire.codec import encode
from tests.fuzz.report import EACH_S, Finding, Report, memory_bytes
from tests.fuzz.wire_inputs import REQUESTS, wire_input
from tests.support.decoder import Decoder

HELLO = encode(wire.Hello(17, 5))
PROBE = encode(wire.KeepAlive())  # echoed as soon as it is read, so it tells that what came before it was
_BARRIER = "barrier/barrier/0.#epoch.0"
BARRIER = encode(wire.SealSegment(1, _BARRIER, ""))  # answered when what came before it was handled
BATCH = 32


def decode_all(seed: int, inputs: int) -> Report:
    """Feed a decoder in random chunks: it gives commands or raises ProtocolError, and nothing else."""
    chance, report = random.Random(seed), Report("wire decoder", seed)
    each = max(1, inputs // 20)
    for number in range(inputs):
        if number % each == 0:
            report.memory.append(memory_bytes())
        data = wire_input(chance)
        if chance.random() < 0.3:
            data += wire_input(chance)
        decoder = Decoder(chance.choice((4096, 8192, 1 << 16)))
        began = time.monotonic()
        outcome, position = "commands", 0
        try:
            while position < len(data):
                size = chance.choice((1, 3, 8, 20, 1000)) if chance.random() < 0.5 else len(data)
                decoder.receive(data[position : position + size])
                position += size
        except ProtocolError:
            outcome = "refused"
        except Exception as error:
            raise Finding(f"decoder, seed {seed}, input {number}: {data.hex()}") from error
        report.saw(outcome, time.monotonic() - began, f"input {number}")
    report.memory.append(memory_bytes())
    return report


class Kind(Enum):
    HANDLED = "handled"  # whole requests
    REFUSED = "refused"  # something that ends the connection
    INCOMPLETE = "cut short"  # it would swallow what came after it


_TAKEN = frozenset((*REQUESTS, wire.KeepAlive, wire.AppendBlockEnd))


def _kind(data: bytes) -> Kind:
    """What is to be expected of an input on a connection where all is well."""
    try:
        commands = Decoder(4096).receive(data)
    except ProtocolError:
        return Kind.REFUSED
    position = 0
    while position + 8 <= len(data):
        position += 8 + int.from_bytes(data[position + 4 : position + 8], "big", signed=True)
    if position != len(data):
        return Kind.INCOMPLETE
    block = commands and type(commands[-1]) is wire.AppendBlock
    taken = {type(command) for command in commands} <= _TAKEN | {wire.AppendBlock}
    return Kind.HANDLED if taken and not block else Kind.REFUSED


async def fuzz_port(address: tuple[str, int], pid: int, seed: int, inputs: int, connections: int = 8) -> Report:
    """Send inputs to a live server, over connections that each handle a batch and may end with a bad input.

    A probe after each tells which was read. If one ends the connection that was not foreseen to, it is counted,
    and what came after it goes again over the next.
    """
    chance, report = random.Random(seed), Report("wire port", seed)
    left = inputs
    each = max(1, inputs // 20)

    async def one_connection() -> None:
        nonlocal left
        waiting: deque[bytes] = deque()
        last: list[bytes] = []
        while waiting or last or left > 0:
            while len(waiting) < BATCH and left > 0 and not last:
                left -= 1
                if left % each == 0:
                    report.memory.append(memory_bytes(pid))
                data = wire_input(chance)
                (waiting if _kind(data) is Kind.HANDLED else last).append(data)
            began = time.monotonic()
            try:
                async with asyncio.timeout(EACH_S):
                    read, ended = await _converse(address, list(waiting), *last)
            except TimeoutError:
                shown = [data.hex() for data in (*waiting, *last)]
                raise Finding(f"wire port, seed {seed}: no answer within {EACH_S} s to one of {shown}") from None
            took = (time.monotonic() - began) / (read + 1)
            for number in range(read):
                waiting.popleft()
                outcome = "ended its connection" if ended and number == read - 1 else Kind.HANDLED.value
                report.saw(outcome, took, "a batch")
            if not ended and last:
                data = last.pop()
                report.saw(_kind(data).value, took, data.hex())

    async with asyncio.TaskGroup() as group:
        for _ in range(connections):
            group.create_task(one_connection())
    report.memory.append(memory_bytes(pid))
    return report


async def _converse(address: tuple[str, int], batch: list[bytes], last: bytes = b"") -> tuple[int, bool]:
    """How many of the batch were handled, and whether one of them ended the connection; if none did, `last`
    is sent as the last of this connection, which the server must then close."""
    reader, writer = await asyncio.open_connection(*address)
    answers, echoes, handled = Decoder(), 0, False
    try:
        writer.write(HELLO + b"".join(data + PROBE for data in batch) + BARRIER)
        while not handled:
            received = await reader.read(1 << 16)
            if not received:
                return min(echoes + 1, len(batch)), True
            for command in answers.receive(received):
                echoes += type(command) is wire.KeepAlive
                handled = handled or (type(command) is wire.NoSuchSegment and command.segment == _BARRIER)
        if last:
            writer.write(last)
            writer.write_eof()
            while await reader.read(1 << 16):
                pass
    except ConnectionError:
        return min(echoes + 1, len(batch)), True
    else:
        return len(batch), False
    finally:
        writer.close()
