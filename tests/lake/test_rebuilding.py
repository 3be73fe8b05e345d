"""A stream recreated from its table: each event once, keys in order, and positions if all bytes are present."""

from __future__ import annotations

import json
from collections import defaultdict

import pytest

import nadi
import nadi.lake
from nadi.errors import AlreadyExistsError, InvalidArgumentError
from nadi.lake import LakeStoppedError

from .world import Killed, Meters, catalog_in


def events(meters: Meters, stream: str) -> list[tuple[int, int, bytes]]:
    tail = meters.manager.stream_info(meters.scope, stream).tail
    found = meters.manager.read_events(meters.scope, stream, end=tail)
    return sorted((one.segment_id, one.offset, one.data) for one in found)


def scaled(meters: Meters) -> None:
    """Write events through a split and a merge."""
    meters.write(0, 200)
    meters.scale([0], [(0.0, 0.2), (0.2, 0.5)])
    meters.write(200, 400)
    two, three = sorted(meters.tail.positions)[1:]
    meters.scale([two, three], [(0.0, 0.5)])
    meters.write(400, 600)


def test_rebuild_with_all_bytes_keeps_positions(meters: Meters) -> None:
    scaled(meters)
    lake = meters.lake(keep_events=True)
    meters.catch_up(lake)
    before, cut = events(meters, "meters"), meters.tail
    middle = meters.after(333)
    done = meters.rebuild("again")
    assert (done.events, done.keeps_positions) == (600, True)
    assert events(meters, "again") == before
    assert meters.manager.stream_info(meters.scope, "again").tail.positions == cut.positions
    same = [nadi.StreamCut(meters.scope, "again", one.positions) for one in (middle, cut)]
    assert meters.manager.cuts(meters.scope, "again").events_between(*same) == 600 - 333


def test_under_the_name_of_a_deleted_stream_segments_have_other_numbers(meters: Meters) -> None:
    scaled(meters)
    lake = meters.lake(keep_events=True)
    meters.catch_up(lake)
    before = events(meters, "meters")
    meters.manager.seal_stream(meters.scope, "meters")
    meters.manager.delete_stream(meters.scope, "meters")
    done = meters.rebuild("meters", key="meter")
    assert (done.events, done.keeps_positions) == (600, False)
    assert sorted(data for _, _, data in events(meters, "meters")) == sorted(data for _, _, data in before)


def test_rebuild_continues_after_a_kill(meters: Meters) -> None:
    scaled(meters)
    lake = nadi.lake.define(meters.manager, meters.scope, "meters", table="raw.m", catalog=catalog_in(meters.folder))
    meters.catch_up(lake)

    def kill(written: int) -> None:
        if written > 250:
            raise Killed

    with pytest.raises(Killed):
        meters.rebuild("again", on_progress=kill)
    meters.write(600, 610)
    meters.catch_up(lake)  # another snapshot, but the stream is made of the first
    done = meters.rebuild("again")
    assert (done.events, done.keeps_positions) == (600, True)
    assert len(events(meters, "again")) == 600
    assert set(events(meters, "again")) < set(events(meters, "meters"))


@pytest.mark.parametrize("key", ["meter", None])
def test_without_all_bytes_each_keys_order_is_kept(meters: Meters, key: str | None) -> None:
    scaled(meters)
    lake = meters.lake()
    meters.catch_up(lake)
    done = meters.rebuild("again", key=key)
    assert (done.events, done.keeps_positions) == (600, False)
    assert len(meters.manager.current_segments(meters.scope, "again")) == (2 if key else 1)
    by_key: dict[str, list[int]] = defaultdict(list)
    tail = meters.manager.stream_info(meters.scope, "again").tail
    for event in meters.manager.read_events(meters.scope, "again", end=tail):
        value = json.loads(event.data)
        by_key[value["meter"]].append(value["wh"])
    assert by_key == {f"m{meter}": list(range(meter, 600, 7)) for meter in range(7)}


def test_a_table_that_begins_late_or_lost_rows_keeps_no_positions(meters: Meters) -> None:
    meters.write(0, 50)
    meters.filled(50, 100, wrong=10, keep_events=True, start="tail", dead_letters="dead")
    done = meters.rebuild("again")
    assert (done.events, done.keeps_positions) == (45, False)


def test_rebuild_invalid_arguments_fail(meters: Meters) -> None:
    lake = meters.lake()
    with pytest.raises(LakeStoppedError):
        meters.rebuild("again")
    meters.write(0, 10)
    meters.catch_up(lake)
    with pytest.raises(AlreadyExistsError):
        meters.rebuild("meters")
    with pytest.raises(InvalidArgumentError, match="'none'"):
        meters.rebuild("again", key="none")
    with pytest.raises(InvalidArgumentError, match="'_append_time'"):
        meters.rebuild("again", key="_append_time")
