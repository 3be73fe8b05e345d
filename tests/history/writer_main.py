"""Run as `python -m tests.history.writer_main URI FOLDER SEED RATE`: writes each reading once, in spite of kills. The
file `progress` in the folder has its progress; it pauses while there is a file `hold`.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import msgspec

from nadi.client.aio import StreamManager
from nadi.client.idempotent.writer import IdempotentWriter, NumberedEvent, StreamShape
from nadi.client.manager.streams import stores_of
from nadi.model.keyspace import key_position
from tests.cluster.processes.client import put
from tests.history.readings import Readings

SCOPE, STREAM = "home", "meters"
AT_ONCE = 50
_ID = b"readings' writer"


class Progress(msgspec.Struct):
    """Progress of the writer. stored: number of acknowledged readings; begun: upper bound of those that may be stored.
    is_held: the writer is paused."""

    stored: int = 0
    begun: int = 0
    is_held: bool = False


def progress_in(folder: Path) -> Progress:
    file = folder / "progress"
    return msgspec.json.decode(file.read_bytes(), type=Progress) if file.exists() else Progress()


async def main(uri: str, folder: Path, seed: int, rate: float) -> None:
    readings, at = Readings(seed), progress_in(folder).stored
    file, hold, encode = folder / "progress", folder / "hold", msgspec.json.Encoder().encode
    async with StreamManager(uri) as manager:
        writer = IdempotentWriter(StreamShape(stores_of(manager), SCOPE, STREAM), _ID)
        while True:
            if hold.exists():
                put(file, Progress(at, at, is_held=True))
                await asyncio.sleep(0.02)
                continue
            put(file, Progress(at, at + AT_ONCE))
            batch = [(number, readings.reading(number)) for number in range(at, at + AT_ONCE)]
            await writer.write([NumberedEvent(n, key_position(item.meter), encode(item)) for n, item in batch])
            at += AT_ONCE
            put(file, Progress(at, at))
            await asyncio.sleep(AT_ONCE / rate)


if __name__ == "__main__":
    _, uri, folder, seed, rate = sys.argv
    asyncio.run(main(uri, Path(folder), int(seed), float(rate)))
