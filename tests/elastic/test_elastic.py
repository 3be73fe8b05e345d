"""A server, a writer and a group of two readers as processes, while the stream's segments are split and merged."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.elastic import plan, retail
from bench.elastic.retail import RetailMissingError
from bench.elastic.run import BY_HAND, Outcome, Settings, run
from bench.java.client import JavaMissingError

TARGET, TOP = 100, 800


def followed(folder: Path, rates: list[int], settings: Settings) -> Outcome:
    plan.save(folder / "plan", plan.made_lines(20_000, 500, 1), rates)
    outcome = run(folder, settings)
    assert outcome.group.written == sum(rates)
    return outcome


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_compressed_day_splits_the_stream_without_losing_duplicating_or_reordering(tmp_path: Path) -> None:
    outcome = followed(
        tmp_path, plan.follow(plan.made_day(), 50, 20, TOP), Settings(target=TARGET, spark=False, naps=True)
    )
    assert outcome.is_good, outcome.group
    splits = [one for one in outcome.scalings if one.kind == "split"]
    assert splits
    assert max(one.after for one in splits) >= TOP / TARGET / 2
    assert all(decision.is_done for decision in outcome.log)
    assert all(share > 0 for share in outcome.shares)


@pytest.mark.slow  # tests/simulation covers scaling under load in every run
@pytest.mark.timeout(400)
def test_random_manual_scaling_loses_duplicates_and_reorders_nothing(tmp_path: Path) -> None:
    outcome = followed(tmp_path, [2_000] * 15, Settings(scaling=BY_HAND, spark=False, seed=3, naps=True))
    assert outcome.is_good, outcome.group
    assert {one.kind for one in outcome.scalings} == {"split", "merge"}
    assert outcome.log == []


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.compatibility
@pytest.mark.timeout(3600)
def test_ten_minutes_of_real_sales_written_by_the_official_client_and_read_by_spark_too(tmp_path: Path) -> None:
    try:
        rows = retail.sales()
        plan.save(tmp_path / "plan", retail.by_customer(rows), plan.follow(retail.day(rows), 600, 50, 5_000))
        outcome = run(tmp_path, Settings(target=500, writer="java"))
    except (RetailMissingError, JavaMissingError) as error:
        pytest.skip(str(error))
    assert outcome.is_good, (outcome.group, outcome.query)
    assert {one.kind for one in outcome.scalings} == {"split", "merge"}
