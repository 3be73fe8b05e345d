"""Kill drivers, executors, Python workers and the server at each step of a micro-batch, while streams split and merge,
and some checkpoints are lost: the output of a chain of queries equals its input, each event once, in order per key.

NADI_SPARK_KILLS is the number of kills (default 4: one of each kind of victim; 40 have each at each step);
NADI_SPARK_SEED repeats a run's choices.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from itertools import cycle, islice, product
from pathlib import Path

import pytest

from tests.spark.kills.chain import Chain
from tests.spark.kills.killing import IN_TASKS, STEPS, VICTIMS
from tests.support.ports import free_port

KILLS = int(os.environ.get("NADI_SPARK_KILLS", "4"))
SEED = int(os.environ.get("NADI_SPARK_SEED", str(random.randrange(1_000_000))))
ALL = [*product((*STEPS, "during a scale"), VICTIMS)]
pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.slow]


def chosen(count: int, chance: random.Random) -> list[tuple[str, str]]:
    """Return steps and victims: all of them in turn, in random order; for few, a different victim each."""
    if count < len(ALL):
        victims = islice(cycle(VICTIMS), count)
        return [(chance.choice(IN_TASKS if victim == "worker" else STEPS), victim) for victim in victims]
    some = [*islice(cycle(ALL), count)]
    chance.shuffle(some)
    return some


@pytest.mark.timeout(420 + 120 * KILLS)
@pytest.mark.parametrize("links", [1] if len(ALL) > KILLS else [1, 3])
def test_each_event_is_delivered_once_in_order_despite_kills(tmp_path: Path, links: int) -> None:
    chance = random.Random(SEED + links)
    streams = ["in", "out"] if links == 1 else ["in", "one", "two", "out"]
    # executors of their own are slow to start: in the quick form, they are the driver
    master = "local[2,4]" if len(ALL) > KILLS else "local-cluster[2,1,800]"
    print(f"seed {SEED}, {KILLS} kills")
    chain = Chain(tmp_path, free_port(), streams, master, SEED, 2.0 if links == 1 else 6.0)
    try:
        chain.start()
        for number, (step, victim) in enumerate(chosen(KILLS, chance)):
            chain.kill_at(step, victim)
            print(f"{number + 1}: {victim} {step}", flush=True)
        chain.check()
    finally:
        chain.close()
    print(f"{chain.written} events, {chain.scalings} scalings, {chain.drivers} drivers, {chain.lost} checkpoints lost")
    print(Counter(victim for _, victim in chain.kills.elements()))
    assert chain.scalings > 0
