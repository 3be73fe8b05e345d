"""`python -m tests.lake.writer_main URI SCOPE NAME STEP NUMBER`: runs the writer of a lake until it is up to date, and
kills itself when the step has been reached for the NUMBERth time (0: never)."""

from __future__ import annotations

import logging
import os
import signal
import sys

import nadi
import nadi.lake


def main(uri: str, scope: str, name: str, step: str, number: int) -> None:
    reached = 0

    def note(done: str) -> None:
        nonlocal reached
        reached += done == step
        if reached == number:
            os.kill(os.getpid(), signal.SIGKILL)

    with nadi.StreamManager(uri) as manager:
        nadi.lake.run(manager, nadi.lake.status(manager, scope, name).lake, once=True, step=note)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    _, uri, scope, name, step, number = sys.argv
    main(uri, scope, name, step, int(number))
