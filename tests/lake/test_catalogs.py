"""Lakes of a REST catalog, and of tables in an object store: the same, whatever becomes of requests on the way."""

from __future__ import annotations

from pathlib import Path

import pytest

import nadi
import nadi.lake
from nadi.errors import UnavailableError
from nadi.lake import LakeStoppedError, LakeWriter
from tests.support.iceberg_rest import LOST, REFUSED, IcebergRest
from tests.support.seaweed import seaweed_endpoint

from .world import a_lake, catch_up, in_stream, in_table, letter_places, places, streams, table_of, write


def test_a_rest_catalog_is_one_like_any_other(
    manager: nadi.StreamManager, scope: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKE_TOKEN", "sesame")
    streams(manager, scope)
    with IcebergRest(tmp_path / "rest", token="sesame") as rest:
        catalog = {"type": "rest", "uri": rest.uri, "token": "${LAKE_TOKEN}"}
        lake = a_lake(manager, scope, tmp_path, catalog=catalog, compact_files=2, partition="bucket(2, meter)")
        for first in range(0, 300, 100):
            write(manager, scope, first, first + 100, wrong=9)
            catch_up(manager, lake)
        assert LakeWriter(manager, lake).compact() > 0
        write(manager, scope, 300, 350, wrong=9)
        good, wrong = in_stream(manager, scope)
        assert places(nadi.lake.union(manager, scope, "meters")) == good
        catch_up(manager, lake)
        assert (places(in_table(lake)), letter_places(manager, scope)) == (good, wrong)
        monkeypatch.setenv("LAKE_TOKEN", "wrong")
        with pytest.raises(LakeStoppedError, match="the catalog refuses it"):
            LakeWriter(manager, lake)


def test_commits_whose_answers_are_lost_or_that_are_refused_are_stored_once(
    manager: nadi.StreamManager, scope: str, tmp_path: Path
) -> None:
    streams(manager, scope)
    with IcebergRest(tmp_path / "rest") as rest:
        lake = a_lake(manager, scope, tmp_path, catalog={"type": "rest", "uri": rest.uri})
        write(manager, scope, 0, 50, wrong=9)
        catch_up(manager, lake)
        for number, fault in enumerate([LOST, REFUSED, LOST, LOST, REFUSED], 1):
            write(manager, scope, number * 50, number * 50 + 50, wrong=9)
            rest.faults.append(fault)
            writer = LakeWriter(manager, lake)
            with pytest.raises(UnavailableError):
                writer.commit()
            if number % 2:
                while writer.commit() is not None:
                    pass
        catch_up(manager, lake)
        good, wrong = in_stream(manager, scope)
        assert (places(in_table(lake)), letter_places(manager, scope)) == (good, wrong)
        assert len(table_of(lake).snapshots()) == 5, "what was refused came with the next"


def test_tables_lie_in_an_object_store(
    manager: nadi.StreamManager, scope: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")  # unsigned ones SeaweedFS takes for data
    endpoint = seaweed_endpoint()
    streams(manager, scope)
    catalog = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"s3://bucket/{scope}",
        "s3.endpoint": endpoint,
        "s3.region": "us-east-1",
        "s3.anonymous": "true",
    }
    lake = a_lake(manager, scope, tmp_path, catalog=catalog, compact_files=2, keep_snapshots_s=0)
    for first in range(0, 200, 100):
        write(manager, scope, first, first + 100, wrong=9)
        catch_up(manager, lake)
    assert LakeWriter(manager, lake).compact() > 0
    write(manager, scope, 200, 250, wrong=9)
    assert places(nadi.lake.union(manager, scope, "meters")) == in_stream(manager, scope)[0]
    catch_up(manager, lake)
    assert places(in_table(lake)) == in_stream(manager, scope)[0]
