"""The guide's examples work as described."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

from nadi.client.aio import StreamManager
from nadi.testing import RestartableServer

from .command import nadi_command
from .support import read

ROOT = Path(__file__).parents[2]


async def test_the_guide_to_functions(
    nadi_server: RestartableServer, manager: StreamManager, nadi_scope: str, tmp_path: Path
) -> None:
    text = (ROOT / "docs" / "functions.md").read_text()
    text = text.replace("tcp://127.0.0.1:9090", nadi_server.controller_uri).replace('"home"', f'"{nadi_scope}"')
    text = text.replace("run(sums)", f'run(sums, "{nadi_server.controller_uri}")')
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    files = {block.partition("\n")[0].removeprefix("# "): block for block in blocks}
    assert sorted(files) == ["again.py", "billing.py", "summing.py"]
    for name, block in files.items():
        (tmp_path / name).write_text(block)
    shell = re.findall(r"```sh\n(.*?)```", text.replace(" home", f" {nadi_scope}"), re.DOTALL)
    [*create, _] = shell[0].splitlines()
    environment = {
        **os.environ,
        "NADI_CONTROLLER": nadi_server.controller_uri,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    await manager.delete_scope(nadi_scope)
    for command in create:
        await nadi_command(nadi_server, *command.split()[1:])
    await manager.create_stream(nadi_scope, "sums")
    await fill(manager, nadi_scope, [b"hall 12", b"cellar ?", b"attic 5"])
    run = [sys.executable, "-m", "nadi.cli.app", "function", "run", "billing:bill"]
    billing = await asyncio.create_subprocess_exec(*run, cwd=tmp_path, env=environment)
    try:
        assert await read(manager, nadi_scope, "bills", 2) == [b"hall: 36 cents", b"attic: 15 cents"]
        await read(manager, nadi_scope, "unbilled", 1)
        again = [sys.executable, "again.py"]
        done = await asyncio.to_thread(subprocess.run, again, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.stdout == "b'cellar ?' 3 ValueError\n", done.stderr
    finally:
        billing.terminate()
        assert await billing.wait() == 0

    await manager.truncate_stream((await manager.stream_info(nadi_scope, "meters")).tail)
    await fill(manager, nadi_scope, [b"hall 12", b"attic 5"])
    summing = await asyncio.create_subprocess_exec(sys.executable, "summing.py", cwd=tmp_path, env=environment)
    try:
        assert await read(manager, nadi_scope, "sums", 1) == [b"17"]
    finally:
        summing.terminate()
        assert await summing.wait() == 0


async def fill(manager: StreamManager, scope: str, events: list[bytes]) -> None:
    writer = await manager.create_writer(scope, "meters")
    await writer.write_many(events, "all")
    await writer.close()
