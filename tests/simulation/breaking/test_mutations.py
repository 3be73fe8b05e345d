"""Each broken rule is detected, by seeds like those of the daily tests (`test_dense`)."""

from __future__ import annotations

import pytest

from ..cluster import work as of_cluster
from ..seeds import DENSE, DENSE_CLUSTER, quiet
from ..work import simulate
from .cluster_mutations import (
    CLUSTER_MUTATIONS,
    acknowledges_before_it_is_in_the_store,
    extends_its_lease_by_beats_without_an_answer,
    goes_on_with_a_lease_that_had_ended,
    takes_a_log_over_without_sealing_it,
)
from .mutations import (
    MUTATIONS,
    Mutation,
    acknowledges_before_it_is_durable,
    commits_half_a_transaction,
    releases_the_log_for_what_only_the_state_has,
    sets_table_entries_whatever_their_version,
)

SEEDS = range(200)


def is_found(mutation: Mutation, seeds: range = SEEDS, *, in_cluster: bool = False) -> bool:
    days, simulated = (DENSE_CLUSTER, of_cluster.simulate) if in_cluster else (DENSE, simulate)

    def fails(seed: int) -> bool:
        try:
            simulated(seed, days.seconds, pace=days.pace)
        except Exception:  # clients, or the server itself, detected an error
            return True
        return False

    with quiet(), mutation():
        return any(map(fails, seeds))


@pytest.mark.parametrize(
    "mutation",
    [
        acknowledges_before_it_is_durable,
        commits_half_a_transaction,
        sets_table_entries_whatever_their_version,
        releases_the_log_for_what_only_the_state_has,
    ],
)
def test_some_mutations_are_detected_at_once(mutation: Mutation) -> None:
    assert is_found(mutation, range(30))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_each_mutation_is_detected_by_two_hundred_seeds(mutation: Mutation) -> None:
    assert is_found(mutation)


@pytest.mark.parametrize(
    "mutation",
    [
        acknowledges_before_it_is_in_the_store,
        takes_a_log_over_without_sealing_it,
        goes_on_with_a_lease_that_had_ended,
        extends_its_lease_by_beats_without_an_answer,
    ],
)
def test_some_cluster_mutations_are_detected_at_once(mutation: Mutation) -> None:
    assert is_found(mutation, range(10), in_cluster=True)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("mutation", CLUSTER_MUTATIONS)
def test_each_cluster_mutation_is_detected_by_two_hundred_seeds(mutation: Mutation) -> None:
    assert is_found(mutation, in_cluster=True)
