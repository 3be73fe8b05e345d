"""A process that repairs container 0 of a folder, and dies at its n-th change of stored data: `python -m
tests.segmentstore.dying_main FOLDER N`."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path

from nadi.segmentstore.repair.skipped_frames import repair_container
from nadi.segmentstore.tier1 import disk
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.segmentstore.tier2.records import ContainerRecords

DIED = 77


def main(folder: Path, step: int) -> None:
    left = [step]

    def counted(real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **options: object) -> object:
            if left[0] <= 0:
                os._exit(DIED)
            left[0] -= 1
            return real(*arguments, **options)

        return call

    for place, name in (
        (Path, "rename"),
        (Path, "unlink"),
        (os, "fdatasync"),
        (disk, "sync_folder"),
        (ChunkStore, "put"),
        (ContainerRecords, "set_snapshot"),
    ):
        setattr(place, name, counted(getattr(place, name)))
    asyncio.run(repair_container(folder / "container-0", 0, ChunkStore.in_folder(folder / "tier2")))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
