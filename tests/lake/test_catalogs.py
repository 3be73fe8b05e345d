"""Lakes in a REST catalog, and tables in an object store: same results, also when requests are lost."""

from __future__ import annotations

import pytest

from nadi.errors import UnavailableError
from nadi.lake import LakeStoppedError, LakeWriter
from tests.support.iceberg_rest import LOST, REFUSED, IcebergRest
from tests.support.seaweed import seaweed_endpoint

from .world import Meters, in_table, places, table_of


def test_lake_works_with_a_rest_catalog(meters: Meters, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE_TOKEN", "sesame")
    with IcebergRest(meters.folder / "rest", token="sesame") as rest:
        catalog = {"type": "rest", "uri": rest.uri, "token": "${LAKE_TOKEN}"}
        lake = meters.lake(catalog=catalog, compact_files=2, partition="bucket(2, meter)")
        meters.keep_level(lake, range(0, 300, 100), wrong=9)
        assert LakeWriter(meters.manager, lake).compact() > 0
        meters.write(300, 350, wrong=9)
        good, wrong = meters.in_stream()
        assert places(meters.union()) == good
        meters.catch_up(lake)
        assert (places(in_table(lake)), meters.letter_places()) == (good, wrong)
        monkeypatch.setenv("LAKE_TOKEN", "wrong")
        with pytest.raises(LakeStoppedError):
            LakeWriter(meters.manager, lake)


def test_lost_or_rejected_commits_are_stored_once(meters: Meters) -> None:
    with IcebergRest(meters.folder / "rest") as rest:
        lake = meters.filled(0, 50, wrong=9, catalog={"type": "rest", "uri": rest.uri})
        for number, fault in enumerate([LOST, REFUSED, LOST, LOST, REFUSED], 1):
            meters.write(number * 50, number * 50 + 50, wrong=9)
            rest.faults.append(fault)
            writer = LakeWriter(meters.manager, lake)
            with pytest.raises(UnavailableError):
                writer.commit()
            if number % 2:
                while writer.commit() is not None:
                    pass
        meters.catch_up(lake)
        meters.check(lake)
        assert len(table_of(lake).snapshots()) == 5, "a rejected commit is repeated with the next"


def test_lake_writes_to_an_object_store(meters: Meters, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")  # SeaweedFS takes unsigned ones for data
    endpoint = seaweed_endpoint()
    catalog = {
        "type": "sql",
        "uri": f"sqlite:///{meters.folder}/catalog.db",
        "warehouse": f"s3://bucket/{meters.scope}",
        "s3.endpoint": endpoint,
        "s3.region": "us-east-1",
        "s3.anonymous": "true",
    }
    lake = meters.lake(catalog=catalog, compact_files=2, keep_snapshots_s=0)
    meters.keep_level(lake, range(0, 200, 100), wrong=9)
    assert LakeWriter(meters.manager, lake).compact() > 0
    meters.write(200, 250, wrong=9)
    assert places(meters.union()) == meters.in_stream()[0]
    meters.catch_up(lake)
    assert places(in_table(lake)) == meters.in_stream()[0]
