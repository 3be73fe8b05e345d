"""The guide's replay in Spark, as printed; and calls at the wrong time."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nadi.errors import ConflictError, InvalidArgumentError
from nadi.spark.replay import Comparison, Replay
from tests.spark.conftest import World
from tests.spark.scaled import ScaledStream, check_once_in_order

pytestmark = pytest.mark.spark
GUIDE = Path(__file__).parents[3] / "docs" / "replay.md"


@contextmanager
def fed(source: ScaledStream) -> Iterator[None]:
    """Write events while the block runs, into a stream that is scaled at times."""
    stop, errors = threading.Event(), []

    def feed() -> None:
        try:
            while not stop.wait(0.05):
                source.write(10)
                if random.random() < 0.02:
                    source.scale()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=feed)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)
    assert not errors


def started(world: World, rows: Any, folder: Path, output: str) -> Any:
    keyed = rows.selectExpr("event", "split(CAST(event AS string), ':')[0] AS routing_key")
    writer = keyed.writeStream.format("nadi").options(**world.options(output))
    return writer.option("checkpointLocation", str(folder / "old")).start()


def ended(query: Any) -> str:
    with pytest.raises(Exception, match="v2") as caught:
        query.awaitTermination(150)
    return str(caught.value)


@pytest.mark.timeout(300)
def test_the_guides_replay(world: World, tmp_path: Path) -> None:
    read, replayed = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    source = ScaledStream(world.manager, "orders", 1)
    world.manager.create_stream("home", "bills", 2)
    source.live(2)
    names: dict[str, Any] = {
        "spark": world.spark,
        "home": {"controller": world.uri, "scope": "home"},
        "folder": str(tmp_path),
        "print": lambda what: said.append(what),
    }
    said: list[Any] = []
    exec(read, names)
    old = started(world, names["rows"], tmp_path, "bills")
    with fed(source):
        exec(replayed, names)
        assert "bills-2" in ended(old)
    query = names["query"]
    source.write(100)
    query.processAllAvailable()
    query.stop()
    end = world.manager.stream_info("home", "bills").tail
    events = [event.data for event in world.manager.read_events("home", "bills", end=end)]
    check_once_in_order([event.lower() for event in events], source.written)
    assert {event[:1] for event in events} == {b"k", b"K"}
    (compared,) = [one for one in said if isinstance(one, Comparison)]
    assert compared.old_events == compared.new_events == compared.missing
    assert not [name for name in world.manager.list_streams("home") if name.startswith("bills-")]
    again = Replay(
        world.spark, names["bills"], names["home"], stream="orders", output="bills", old="bills-1", new="bills-2",
        checkpoint=str(tmp_path / "bills-2"),
    )  # fmt: skip
    with pytest.raises(ConflictError):
        again.abandon()
    source.write(50)
    again.start().processAllAvailable()
    again.switch().stop()
    end = world.manager.stream_info("home", "bills").tail
    events = [event.data for event in world.manager.read_events("home", "bills", end=end)]
    check_once_in_order([event.lower() for event in events], source.written)


@pytest.mark.slow  # half a minute
@pytest.mark.timeout(300)
def test_differing_version_does_not_take_over(world: World, tmp_path: Path) -> None:
    source = ScaledStream(world.manager, "goods", 1)
    world.manager.create_stream("home", "taken", 1)
    source.write(100)
    home = {"controller": world.uri, "scope": "home"}
    with pytest.raises(InvalidArgumentError):
        Replay(world.spark, lambda rows: rows, home, stream="goods", output="taken", old="a", new="a", checkpoint="x")
    replay = Replay(
        world.spark,
        lambda rows: rows.where("CAST(event AS string) NOT LIKE '%:7'"),
        home,
        stream="goods",
        output="taken",
        old="v1",
        new="v2",
        checkpoint=str(tmp_path / "new"),
    )
    with pytest.raises(ConflictError):
        replay.switch()
    with pytest.raises(ConflictError):
        replay.wait_until_caught_up()
    old = started(world, world.read_stream("goods", cutover="v1"), tmp_path, "taken")
    old.processAllAvailable()
    replay.start()
    replay.wait_until_caught_up(150, on_progress=None)
    assert replay.compare().missing == 1
    with pytest.raises(ConflictError, match=r"1 missing, 0 extra.*b'k\d+:7'.*v1"):
        replay.switch(if_equal=True)
    ended(old)
    assert "taken-v2" not in world.manager.list_streams("home")
    source.write(100)
    old = started(world, world.read_stream("goods", cutover="v1"), tmp_path, "taken")
    old.processAllAvailable()
    old.stop()
    end = world.manager.stream_info("home", "taken").tail
    check_once_in_order([event.data for event in world.manager.read_events("home", "taken", end=end)], source.written)
