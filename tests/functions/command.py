"""The command, and instances of functions, as separate processes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from typer.testing import CliRunner

from nadi.cli.app import app
from nadi.standalone import EmbeddedServer
from nadi.testing import RestartableServer


async def nadi_command(server: RestartableServer | EmbeddedServer, *arguments: str, code: int = 0) -> str:
    environment = {"NADI_CONTROLLER": server.controller_uri, "COLUMNS": "200"}
    result = await asyncio.to_thread(CliRunner().invoke, app, arguments, env=environment)
    assert result.exit_code == code, result.output
    return result.output


@asynccontextmanager
async def runner(
    uri: str, scope: str, handler: str, step: str = "-", number: int = 0, delivery: str = "exactly-once"
) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.functions.runner_main", uri, scope, handler, delivery, step, str(number))
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
