"""A fake S3 as a process: see the package."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from pathlib import Path

from tests.support.fake_s3.server import FakeS3


async def _serve(folder: Path | None, port: int) -> None:
    async with FakeS3(folder, port=port) as s3:
        print(s3.endpoint, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="where objects are stored; by default in memory")
    asked = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(asked.folder, asked.port))
