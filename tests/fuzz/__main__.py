"""`python -m tests.fuzz --inputs 1000000`: random and damaged input for every interface open to strangers.

Four targets: the wire decoder and the RPC handlers in this process, and the wire port and the RPC port of live servers,
where a canary writes and reads meanwhile. A run ends with a Finding, or with a report for each target. The same seed
gives the same inputs.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import re
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import nadi
from nadi.config import ServerConfig
from nadi.standalone.embedded import EmbeddedServer
from nadi.standalone.server import Server
from tests.fuzz.report import Canary, Finding, Report
from tests.fuzz.rpc import fuzz_handlers, fuzz_service
from tests.fuzz.wire import decode_all, fuzz_port

# Small, so that what a server keeps by design is soon reached and growth beyond it shows.
LIMITS = {"cache_max_bytes": 8 << 20, "log_file_bytes": 8 << 20, "stream_max_segments": 8}
GROWTH_MAX_BYTES = 96 << 20  # over a run, from its first tenth on; segments and streams that inputs made included
_TROUBLE = re.compile(r"ERROR|Traceback|unexpected error|will recover")


@contextlib.contextmanager
def _server(folder: Path) -> Iterator[EmbeddedServer]:
    """A server in a child process, whose log must not contain internal errors."""
    log = folder / "server.log"
    kept = os.dup(2)
    with log.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        limits = ",".join(f"{name}={value}" for name, value in LIMITS.items())
        with nadi.embedded(
            folder / "data", containers=1, environment={"NADI_LIMITS": limits, "NADI_LOG": "ERROR"}
        ) as server:
            yield server
    finally:
        os.dup2(kept, 2)
        os.close(kept)
    trouble = _TROUBLE.search(log.read_text(errors="replace"))
    if trouble is not None:
        raise Finding(f"the server logged: {log.read_text(errors='replace')[trouble.start() :][:4000]}")


def _decoder(folder: Path, seed: int, inputs: int) -> Report:
    return decode_all(seed, inputs)


class _Errors(logging.Handler):
    """A handler that keeps logged errors."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.first: str | None = None

    def emit(self, record: logging.LogRecord) -> None:
        self.first = self.first or self.format(record)


def _handlers(folder: Path, seed: int, inputs: int) -> Report:
    errors = _Errors()
    logging.getLogger("nadi").addHandler(errors)

    async def main() -> Report:
        async with Server(ServerConfig(data=folder / "data", store_port=0, port=0, containers=1)) as server:
            return await fuzz_handlers(server.controller, seed, inputs)

    report = asyncio.run(main())
    if errors.first is not None:
        raise Finding(f"an error was logged: {errors.first}")
    return report


def _live(fuzz: Callable[[EmbeddedServer], Awaitable[Report]], folder: Path) -> Report:
    async def main(server: EmbeddedServer) -> Report:
        async with Canary(server.controller_uri) as canary:
            report = await fuzz(server)
        print(canary, flush=True)
        return report

    with _server(folder) as server:
        return asyncio.run(main(server))


def _wire_port(folder: Path, seed: int, inputs: int) -> Report:
    return _live(lambda server: fuzz_port(server.store_address, server.pid, seed, inputs), folder)


def _rpc_port(folder: Path, seed: int, inputs: int) -> Report:
    return _live(
        lambda server: fuzz_service(server.controller_uri.removeprefix("tcp://"), server.pid, seed, inputs), folder
    )


TARGETS: dict[str, Callable[[Path, int, int], Report]] = {
    "decoder": _decoder,
    "handlers": _handlers,
    "wire-port": _wire_port,
    "rpc-port": _rpc_port,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="for each target")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", choices=TARGETS, action="append", help="[default: all]")
    options = parser.parse_args()
    for target in options.target or TARGETS:
        with tempfile.TemporaryDirectory(prefix="nadi-fuzz-") as folder:
            report = TARGETS[target](Path(folder), options.seed, options.inputs)
        print(report, flush=True)
        if report.grown_bytes() > GROWTH_MAX_BYTES:
            raise Finding(f"memory grew by {report.grown_bytes() >> 20} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
