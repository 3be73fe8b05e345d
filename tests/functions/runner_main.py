"""`python -m tests.functions.runner_main URI SCOPE HANDLER STEP NUMBER`: an exactly-once function in a process that
kills itself when the step has been reached for the NUMBERth time (0: never)."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys

from nadi.client.aio import StreamManager
from nadi.functions import serve

from .support import exactly_once


async def main(uri: str, scope: str, handler: str, step: str, number: int) -> None:
    reached = 0

    def note(name: str) -> None:
        nonlocal reached
        reached += name == step
        if reached == number:
            os.kill(os.getpid(), signal.SIGKILL)

    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with StreamManager(uri) as manager:
        await serve(exactly_once(scope, handler), manager, stop=stop, step=note)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    _, uri, scope, handler, step, number = sys.argv
    asyncio.run(main(uri, scope, handler, step, int(number)))
