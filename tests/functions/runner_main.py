"""`python -m tests.functions.runner_main URI SCOPE HANDLER DELIVERY STEP NUMBER`: runs a function, and kills itself
when the step has been reached for the NUMBERth time (0: never)."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys

from nadi.client.aio import StreamManager
from nadi.functions import serve

from .support import delivered


async def main(uri: str, scope: str, handler: str, delivery: str, step: str, number: int) -> None:
    reached = 0

    def note(name: str) -> None:
        nonlocal reached
        reached += name == step
        if reached == number:
            os.kill(os.getpid(), signal.SIGKILL)

    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with StreamManager(uri) as manager:
        await serve(delivered(scope, handler, delivery), manager, stop=stop, step=note)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    _, uri, scope, handler, delivery, step, number = sys.argv
    asyncio.run(main(uri, scope, handler, delivery, step, int(number)))
