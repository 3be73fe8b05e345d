"""A simulation from start to end: clients at work on a server, faults of all kinds, and a check of what clients saw.

The same seed does the same each time, in any process. To see what happened at one: script/simulate SEED --log FILE
"""

from __future__ import annotations

from pathlib import Path

from . import fate
from .days import Outcome, at_work, judged, outcome_of
from .judging.history import History
from .machine.disk import SimulatedLog
from .machine.loop import SimulatedLoop, run
from .server import OneServer


def simulate(
    seed: int | str,
    seconds: float = 300.0,
    log: type[SimulatedLog] = SimulatedLog,
    *,
    pace: float = 1.0,
    log_file: Path | None = None,
) -> Outcome:
    """Raises GuaranteeError, or any other error that must not happen.

    log: the type of the containers' logs. pace: factor by which the mean time of a minute between kills, and the pauses
    of clients, are prolonged. log_file: gets the last events, whatever the outcome.
    """
    last_lines: list[str] = []
    try:
        return run(lambda loop: _simulate(loop, f"{seed}", seconds, log, pace=pace, last_lines=last_lines))
    finally:
        if log_file is not None:
            log_file.write_text("\n".join(last_lines) + "\n")


async def _simulate(
    loop: SimulatedLoop, seed: str, seconds: float, log: type[SimulatedLog], *, pace: float, last_lines: list[str]
) -> Outcome:
    async with OneServer(loop, seed, log) as world:
        try:
            history = History()
            await at_work(
                world,
                history,
                seconds,
                pace,
                lambda crowd: [
                    fate.servers(world, 60.0 * pace),
                    fate.network(world, crowd.living, 20.0 * pace),
                    fate.clients(world, crowd.living, 30.0 * pace),
                ],
            )
            world.rest()
            world.server.kill()
            await judged(world, history, f"judge-{world.server.starts}")
            await world.server.stop()
            world.server.start()
            watermarks = await judged(world, history, f"judge-{world.server.starts}")
        except BaseException as error:
            error.add_note(f"again: script/simulate {seed} --minutes {seconds / 60:g} --pace {pace:g} --log {seed}.log")
            world.note(type(error).__name__, error)
            raise
        finally:
            last_lines += world.last_lines
        return outcome_of(world, history, watermarks)
