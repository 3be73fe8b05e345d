"""A stream made anew from its table: each event once, keys in order, and positions where all of the bytes are there."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

import nadi
import nadi.lake
from nadi.errors import AlreadyExistsError, InvalidArgumentError
from nadi.lake import LakeStoppedError

from .test_kills import Killed
from .world import a_lake, catalog_in, catch_up, streams, write


def events(manager: nadi.StreamManager, scope: str, stream: str) -> list[tuple[int, int, bytes]]:
    tail = manager.stream_info(scope, stream).tail
    found = [(one.segment_id, one.offset, one.data) for one in manager.read_events(scope, stream, end=tail)]
    return sorted(found)


def scaled(manager: nadi.StreamManager, scope: str) -> None:
    """Written through a split and a merge."""
    streams(manager, scope)
    write(manager, scope, 0, 200)
    manager.scale_stream(scope, "meters", [0], [(0.0, 0.2), (0.2, 0.5)])
    write(manager, scope, 200, 400)
    two, three = sorted(manager.stream_info(scope, "meters").tail.positions)[1:]
    manager.scale_stream(scope, "meters", [two, three], [(0.0, 0.5)])
    write(manager, scope, 400, 600)


def test_with_all_bytes_every_event_lies_where_it_lay_and_cuts_still_hold(
    manager: nadi.StreamManager, scope: str, tmp_path: Path
) -> None:
    scaled(manager, scope)
    lake = a_lake(manager, scope, tmp_path, keep_events=True)
    catch_up(manager, lake)
    before, cut = events(manager, scope, "meters"), manager.stream_info(scope, "meters").tail
    middle = manager.cuts(scope, "meters").after(manager.stream_info(scope, "meters").head, 333)
    done = nadi.lake.rebuild(manager, scope, lake.name, "again")
    assert (done.events, done.keeps_positions) == (600, True)
    assert events(manager, scope, "again") == before
    assert manager.stream_info(scope, "again").tail.positions == cut.positions
    same = [nadi.StreamCut(scope, "again", one.positions) for one in (middle, cut)]
    assert manager.cuts(scope, "again").events_between(*same) == 600 - 333


def test_under_the_name_of_a_deleted_stream_segments_have_other_numbers(
    manager: nadi.StreamManager, scope: str, tmp_path: Path
) -> None:
    scaled(manager, scope)
    lake = a_lake(manager, scope, tmp_path, keep_events=True)
    catch_up(manager, lake)
    before = events(manager, scope, "meters")
    manager.seal_stream(scope, "meters")
    manager.delete_stream(scope, "meters")
    done = nadi.lake.rebuild(manager, scope, lake.name, "meters", key="meter")
    assert (done.events, done.keeps_positions) == (600, False)
    assert sorted(data for _, _, data in events(manager, scope, "meters")) == sorted(data for _, _, data in before)


def test_a_kill_is_gone_on_from(manager: nadi.StreamManager, scope: str, tmp_path: Path) -> None:
    scaled(manager, scope)
    lake = nadi.lake.start(manager, scope, "meters", table="raw.m", catalog=catalog_in(tmp_path))
    catch_up(manager, lake)

    def kill(written: int) -> None:
        if written > 250:
            raise Killed

    with pytest.raises(Killed):
        nadi.lake.rebuild(manager, scope, lake.name, "again", told=kill)
    write(manager, scope, 600, 610)
    catch_up(manager, lake)  # another snapshot: the stream is made of the one that it was begun with
    done = nadi.lake.rebuild(manager, scope, lake.name, "again")
    assert (done.events, done.keeps_positions) == (600, True)
    assert len(events(manager, scope, "again")) == 600
    assert set(events(manager, scope, "again")) < set(events(manager, scope, "meters"))


@pytest.mark.parametrize("key", ["meter", None])
def test_without_all_bytes_each_keys_order_is_kept(
    manager: nadi.StreamManager, scope: str, tmp_path: Path, key: str | None
) -> None:
    scaled(manager, scope)
    lake = a_lake(manager, scope, tmp_path)
    catch_up(manager, lake)
    done = nadi.lake.rebuild(manager, scope, lake.name, "again", key=key)
    assert (done.events, done.keeps_positions) == (600, False)
    assert len(manager.current_segments(scope, "again")) == (2 if key else 1)
    by_key: dict[str, list[int]] = defaultdict(list)
    import json

    for event in manager.read_events(scope, "again", end=manager.stream_info(scope, "again").tail):
        value = json.loads(event.data)
        by_key[value["meter"]].append(value["wh"])
    assert by_key == {f"m{meter}": list(range(meter, 600, 7)) for meter in range(7)}


def test_a_table_that_begins_late_or_lost_rows_keeps_no_positions(
    manager: nadi.StreamManager, scope: str, tmp_path: Path
) -> None:
    streams(manager, scope)
    write(manager, scope, 0, 50)
    lake = a_lake(manager, scope, tmp_path, keep_events=True, start="tail", dead_letters="dead")
    write(manager, scope, 50, 100, wrong=10)
    catch_up(manager, lake)
    done = nadi.lake.rebuild(manager, scope, lake.name, "again")
    assert (done.events, done.keeps_positions) == (45, False)


def test_what_cannot_be_made_is_said(manager: nadi.StreamManager, scope: str, tmp_path: Path) -> None:
    streams(manager, scope)
    lake = a_lake(manager, scope, tmp_path)
    with pytest.raises(LakeStoppedError, match="nothing to make a stream of"):
        nadi.lake.rebuild(manager, scope, lake.name, "again")
    write(manager, scope, 0, 10)
    catch_up(manager, lake)
    with pytest.raises(AlreadyExistsError):
        nadi.lake.rebuild(manager, scope, lake.name, "meters")
    with pytest.raises(InvalidArgumentError, match="no column"):
        nadi.lake.rebuild(manager, scope, lake.name, "again", key="none")
    with pytest.raises(
        InvalidArgumentError, match=r"'_append_time' is timestamp.*a routing key is a string or a number"
    ):
        nadi.lake.rebuild(manager, scope, lake.name, "again", key="_append_time")
