"""Child process of `nadi.embedded`: serves until its standard input closes or SIGTERM arrives."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import sys
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from nadi.config import ServerConfig
from nadi.errors import DataFolderTakeoverError, InvalidArgumentError, NadiError
from nadi.observe import logs, traces
from nadi.shutdown import end_process_within
from nadi.standalone.embedded import ERROR_KINDS, Ready, stop_s

if TYPE_CHECKING:
    from nadi.standalone.clustered import ClusterServer
    from nadi.standalone.server import Server


def _report(ready: Ready) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(ready) + b"\n")
    sys.stdout.buffer.flush()


async def _serve(config: ServerConfig, served: list[str]) -> None:
    """Serve. served: receives the controller's URI once clients can connect."""
    from nadi.standalone.assembly import serve

    def ready(server: Server | ClusterServer) -> None:
        _report(Ready(server.controller_uri, *server.store_address, server.rest_uri, server.kafka_address))
        served.append(server.controller_uri)

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_parent_input() -> None:
        if not os.read(0, 4096):
            loop.remove_reader(0)
            stop.set()

    loop.add_reader(0, on_parent_input)
    server: Server | ClusterServer
    if config.store:
        from nadi.standalone.clustered import ClusterServer

        server = ClusterServer(config)
    else:
        from nadi.standalone.server import Server

        server = Server(config)
    await serve(server, ready, stop, partial(end_process_within, stop_s(config)))


def main() -> int:
    config = msgspec.convert(json.loads(sys.argv[1]), ServerConfig)
    served: list[str] = []
    gc.disable()  # until `serve` is ready: it would look at the same modules again and again
    try:
        try:
            import nadi.limits  # noqa: F401 - raises if NADI_LIMITS is invalid, before any module reads a limit
        except ValueError as error:
            raise InvalidArgumentError(str(error)) from error
        logs.configure_from(os.environ, "nadi %(levelname)s %(message)s")
        traces.turn_on_export(os.environ.get(traces.ENVIRONMENT, "none"), traces.ENVIRONMENT)
        import uvloop

        uvloop.run(_serve(config, served))
    except NadiError as error:
        if served or isinstance(error, DataFolderTakeoverError):  # the parent no longer waits for the start
            logging.error("%s", error)
            return 1
        kind = next((word for word, kind in ERROR_KINDS.items() if isinstance(error, kind)), "other")
        text = str(error).encode(errors="backslashreplace").decode()  # a folder's name may not be Unicode
        _report(Ready(error=text, error_kind=kind))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
