"""`spread` with the official Java client as the writer, in a separate process, on a nadi server.

The client has default settings. In version 0.13 `enableConnectionPooling` of an `EventWriterConfig` is off: each
segment has a connection, a thread that reads from it, and a megabyte of buffers. With `pooled`, segments share at most
ten connections. The client's processor time includes Java's compilation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec

from bench.java.client import command
from bench.measure import SCOPE, STREAM, Figure
from bench.part import Part
from bench.spread import KEY_STEP, KEYS, SPREAD, Load, Written, figures

PROGRAM = "SpreadWriter.java"
_HEAP = "3g"  # a thousand connections of their own don't fit into 1 GB
_ANSWER_S = 90.0  # after the last event is due


def spread_java(folder: Path, load: Load = SPREAD, *, pooled: bool = False) -> list[Figure]:
    """Measure like `bench.spread.spread`. Raises JavaMissingError, and PartFailedError if the Java program fails."""
    java = command(PROGRAM, folder, _HEAP)
    prefix = "Java client, pooled: " if pooled else "Java client: "
    return figures(folder, load, partial(warmed, java, folder, pooled), prefix)


@contextmanager
def warmed(java: list[str], folder: Path, pooled: bool, uri: str, load: Load) -> Iterator[Callable[[], Written]]:
    """A `bench.spread.Writer`, after the first three arguments. java: the program's command. folder: for its errors."""
    numbers = (load.rate, load.size, load.count, load.warm, KEYS, KEY_STEP)
    arguments = [uri, SCOPE, STREAM, *map(str, numbers), "pooled" if pooled else "shipped"]
    with Part("SpreadWriter", [*java, *arguments], folder) as program:
        program.await_ready()
        yield partial(_write, program, load)


def _write(program: Part, load: Load) -> Written:
    program.notify()
    return msgspec.json.decode(program.await_answer(load.seconds + _ANSWER_S), type=Written)
