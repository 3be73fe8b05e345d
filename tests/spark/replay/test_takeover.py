"""A new version takes over despite kills at any step: the output has each event once, in order per key."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import Any

import pytest

from nadi.client.scan.connection import ConnectionSettings
from nadi.errors import ConflictError, InvalidArgumentError
from nadi.spark import cutover
from nadi.spark.connections import client_of
from nadi.spark.cutover import Cutover, QuerySupersededError, State
from nadi.spark.replay import Comparison, Takeover, compare
from tests.spark.queries import Home
from tests.spark.replay.versions import Version
from tests.spark.scaled import ScaledStream, check_once_in_order

pytestmark = pytest.mark.spark


class Scene:
    """Both versions, the streams and the replaying process, all of which may be killed."""

    def __init__(self, home: Home, name: str, seed: int) -> None:
        self.home, self.name, self.chance = home, name, random.Random(seed)
        self.source = ScaledStream(home.manager, name, seed)
        self.output, self.trial = f"{name}-out", f"{name}-trial"
        home.manager.create_stream("home", self.output, 2)
        self.old, self.new = Version(home, b":old", self.chance), Version(home, b":new", self.chance)
        self.old.start(self.output, stream=name, cutover="v1", max_bytes_per_trigger="2000")
        self.client = client_of(ConnectionSettings(home.uri))

    def run(self, work: Callable[[Takeover], Any], new: str = "v2") -> Any:
        """Run a step in a process that knows nothing of earlier steps."""
        takeover = Takeover(
            self.client.manager, "home", self.name, old="v1", new=new, output=self.output, trial=self.trial
        )
        return self.client.run(work(takeover))

    def begin(self, start: str = "head") -> Cutover:
        found: Cutover = self.run(lambda takeover: takeover.begin(start))
        self.new.start(self.trial, stream=self.name, replay_of="v1", start_stream_cut=found.start)
        return found

    def go(self, version: Version, kills: float = 0.0) -> None:
        for _ in range(200):
            if not version.trigger(kills):
                return

    def outputs(self, stream: str) -> list[bytes]:
        return [event.data for event in self.home.events(stream)]

    def check(self) -> list[bytes]:
        """Check that each event is there once, in order; the last batches' events are held back, so may be missing."""
        events = self.outputs(self.output)
        check_once_in_order((event.rpartition(b":")[0] for event in events), self.source.written)
        return events


@pytest.fixture(autouse=True)
def always_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutover, "SPARK_CUTOVER_EVERY_S", 0.0)


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 8))])
def test_output_has_each_event_once_despite_kills_at_any_step(home: Home, seed: int) -> None:
    scene = Scene(home, f"any-{seed}", seed)
    chance, is_over = scene.chance, False
    scene.source.live(2)
    scene.go(scene.old)
    asked_at = chance.randrange(4, 20)
    for turn in range(400):
        if turn < 30 and chance.random() < 0.3:
            scene.source.write(20)
            if chance.random() < 0.3:
                scene.source.scale()
        if turn == 2:
            scene.begin()
        with suppress(QuerySupersededError):
            scene.old.trigger(0.25)
        if turn >= 2:
            scene.new.trigger(0.25)
        if turn < asked_at:
            continue
        found: Cutover = scene.run(lambda takeover: takeover.ask())
        if found.is_old_done and found.is_new_done and not is_over:
            compared: Comparison = scene.run(lambda takeover: takeover.compare(lambda event: event.split(b":")[0]))
            assert compared.old_events == compared.new_events == compared.missing == compared.extra
            assert scene.run(lambda takeover: takeover.finish()).state is State.SWITCHED
            scene.new.start(scene.output, stream=scene.name, cutover="v2", start_stream_cut=found.cut or "")
            is_over = True
            scene.source.write(50)
        if is_over and turn > 40 and not scene.new.trigger():
            break
    assert is_over
    end(scene, scene.new)
    marks = {event.rpartition(b":")[2] for event in scene.check()}
    assert marks == {b"old", b"new"}
    assert scene.old.kills + scene.new.kills


def end(scene: Scene, version: Version) -> None:
    """Run a last batch that emits events held back: that of another cutover at the tail."""
    scene.go(version)
    name = "v2" if version is scene.new else "v1"
    last = Takeover(
        scene.client.manager, "home", scene.name, old=name, new="v3", output=scene.output, trial=f"{scene.name}-last"
    )
    scene.client.run(last.begin("tail"))
    scene.client.run(last.ask())
    with pytest.raises(QuerySupersededError):
        scene.go(version)


def test_an_abandoned_replay_leaves_the_old_version_as_it_was(home: Home) -> None:
    scene = Scene(home, "left", 1)
    scene.source.write(100)
    scene.go(scene.old)
    scene.begin()
    scene.go(scene.new)
    scene.run(lambda takeover: takeover.ask())
    with pytest.raises(QuerySupersededError, match="v2"):
        scene.go(scene.old)
    with pytest.raises(QuerySupersededError):
        scene.old.trigger()
    scene.run(lambda takeover: takeover.abandon())
    with pytest.raises(ConflictError, match="v2"):
        scene.go(scene.new)
    scene.run(lambda takeover: takeover.delete_trial())
    scene.run(lambda takeover: takeover.delete_trial())
    scene.source.write(100)
    with pytest.raises(InvalidArgumentError, match="v2"):
        scene.begin()
    scene.go(scene.old)
    other = Takeover(scene.client.manager, "home", "left", old="v1", new="v3", output=scene.output, trial="left-other")
    scene.client.run(other.begin("tail"))
    with pytest.raises(ConflictError, match="v3"):
        scene.run(lambda takeover: takeover.ask())
    with pytest.raises(ConflictError, match="v3"):
        scene.begin()
    scene.client.run(other.ask())
    with pytest.raises(QuerySupersededError):
        scene.go(scene.old)
    assert {event.rpartition(b":")[2] for event in scene.check()} == {b"old"}


def test_outputs_are_compared_while_both_queries_run(home: Home) -> None:
    scene = Scene(home, "even", 2)
    scene.source.write(300)
    scene.go(scene.old)
    bookmark = home.manager.cuts("home", "even").tail()
    scene.source.write(100)
    scene.begin(bookmark.as_text())
    with pytest.raises(ConflictError):
        scene.run(lambda takeover: takeover.compare())
    assert not scene.new.trigger(), "it waits until the old version has said where it is"
    assert scene.run(lambda takeover: takeover.lag()).size_bytes is None
    scene.go(scene.old)
    assert scene.run(lambda takeover: takeover.lag()).size_bytes > 1000
    scene.go(scene.new)
    behind = scene.run(lambda takeover: takeover.lag())
    assert (behind.size_bytes, behind.is_even) == (0, True)
    scene.source.write(200)
    scene.go(scene.old)
    scene.go(scene.new)
    scene.source.write(50)
    scene.old.trigger()
    compared: Comparison = scene.run(lambda takeover: takeover.compare())
    assert compared.old_events > 100
    assert compared.missing == compared.old_events, "each version marks its own"
    assert all(event.endswith(b":old") for event in compared.first_missing)


def test_query_past_the_cut_raises_conflict(home: Home) -> None:
    scene = Scene(home, "past", 3)
    scene.source.write(100)
    scene.begin()
    scene.go(scene.old)
    scene.run(lambda takeover: takeover.ask())
    with pytest.raises(QuerySupersededError):
        scene.go(scene.old)
    scene.source.write(10)
    stray = Version(home, b"", scene.chance)
    stray.start(scene.trial, stream="past", replay_of="v1", start="tail")
    with pytest.raises(ConflictError):
        stray.trigger()


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        ([b"a:1", b"b:1", b"a:2"], [b"a:1", b"a:2", b"b:1"], Comparison(3, 3, 0, 0, (), (), 0)),
        ([b"a:1", b"a:2"], [b"a:2", b"a:1"], Comparison(2, 2, 0, 0, (), (), 1)),
        ([b"a:1", b"a:1"], [b"a:1"], Comparison(2, 1, 1, 0, (b"a:1",), (), 0)),
        ([], [b"a:1", b"b:1"], Comparison(0, 2, 0, 2, (), (b"a:1", b"b:1"), 0)),
        (
            [b"a:%d" % n for n in range(2500)],
            [b"a:%d" % n for n in range(2500)],
            Comparison(2500, 2500, 0, 0, (), (), 0),
        ),
    ],
)
def test_a_comparison(old: list[bytes], new: list[bytes], wanted: Comparison) -> None:
    def of(events: list[bytes]) -> Callable[[], AsyncGenerator[bytes, None]]:
        async def all_of() -> AsyncGenerator[bytes, None]:
            for event in events:
                yield event

        return all_of

    found = asyncio.run(compare(of(old), of(new), lambda event: event.split(b":")[0]))
    assert found == wanted
    assert found.is_equal == str(found).startswith("equal")
