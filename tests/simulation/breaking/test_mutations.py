"""Each rule that is broken is found out, by seeds like those of every day (`test_two_hundred`)."""

from __future__ import annotations

import pytest

from ..seeds import DENSE, quiet
from ..work import simulate
from .mutations import (
    MUTATIONS,
    Mutation,
    acknowledges_before_it_is_durable,
    commits_half_a_transaction,
    sets_table_entries_whatever_their_version,
)

SEEDS = range(200)


def is_found(mutation: Mutation, seeds: range = SEEDS) -> bool:
    def fails(seed: int) -> bool:
        try:
            simulate(seed, DENSE.seconds, pace=DENSE.pace)
        except Exception:  # clients saw something, or the server itself found that something is wrong
            return True
        return False

    with quiet(), mutation():
        return any(map(fails, seeds))


@pytest.mark.parametrize(
    "mutation",
    [acknowledges_before_it_is_durable, commits_half_a_transaction, sets_table_entries_whatever_their_version],
)
def test_some_are_found_at_once(mutation: Mutation) -> None:
    assert is_found(mutation, range(30))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_each_is_found_by_two_hundred_seeds(mutation: Mutation) -> None:
    assert is_found(mutation)
