"""The child process of `nadi.embedded`: serves until its standard input closes or SIGTERM comes."""

from __future__ import annotations

import asyncio
import logging
import os
import sys

import msgspec
import uvloop

from nadi.errors import DataFolderError, NadiError
from nadi.standalone.embedded import Ready
from nadi.standalone.server import Server, serve


def _say(ready: Ready) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(ready) + b"\n")
    sys.stdout.buffer.flush()


async def _serve(folder: str, port: int, containers: int, rest_port: int | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def parent_spoke() -> None:
        if not os.read(0, 4096):
            loop.remove_reader(0)
            stop.set()

    loop.add_reader(0, parent_spoke)
    server = Server(folder, store_port=0, controller_port=port, rest_port=rest_port, containers=containers or None)
    await serve(server, lambda s: _say(Ready(s.controller_uri, *s.store_address, s.rest_uri)), stop)


def main() -> int:
    logging.basicConfig(level=os.environ.get("NADI_LOG", "WARNING"), format="nadi %(levelname)s %(message)s")
    folder, port, containers, rest_port = sys.argv[1:5]
    try:
        uvloop.run(_serve(folder, int(port), int(containers), int(rest_port) if rest_port else None))
    except NadiError as error:
        kind = "folder" if isinstance(error, DataFolderError) else "other"
        _say(Ready(error=str(error), error_kind=kind))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
