"""A process that starts or repairs container 0 of a folder, and dies at its n-th change of a name or sync of a folder
that has to do with the state: `python -m tests.segmentstore.dying_main start|repair FOLDER N`."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from nadi.segmentstore.container.cache import BlockCache
from nadi.segmentstore.container.container import Container
from nadi.segmentstore.recovery.localparts import LocalParts
from nadi.segmentstore.repair.replacement import repair_container
from nadi.segmentstore.tier1 import disk
from nadi.segmentstore.tier2.chunks import ChunkStore

DIED = 77


async def start(folder: Path, chunks: ChunkStore) -> None:
    container = Container(LocalParts(0, folder / "container-0", chunks), BlockCache())
    await container.start()
    await container.stop()


def main(what: str, folder: Path, step: int) -> None:
    left = [step]

    def counted(real: Callable[..., object]) -> Callable[..., object]:
        def call(path: Path | str, *arguments: object, **options: object) -> object:
            name = Path(path).name
            if name.startswith("state") or name == "container-0":
                if left[0] <= 0:
                    os._exit(DIED)
                left[0] -= 1
            return real(path, *arguments, **options)

        return call

    for place, name in ((Path, "rename"), (Path, "mkdir"), (disk, "sync_folder"), (shutil, "rmtree")):
        setattr(place, name, counted(getattr(place, name)))
    chunks = ChunkStore.in_folder(folder / "tier2")
    if what == "start":
        asyncio.run(start(folder, chunks))
    else:
        asyncio.run(repair_container(folder / "container-0", 0, chunks))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
