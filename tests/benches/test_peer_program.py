"""A peer's program, with a peer in memory: what counts as warm, who can't keep a rate, and how a tail ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import pytest

from bench import peer_program
from bench.peer_program import Pace
from bench.peer_work import END, KEYS, SMALL, WARM, Acked, Figures
from tests.support.clocks import OnlySleeps

clock = OnlySleeps()


@pytest.fixture(autouse=True)
def own_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_program, "time", clock)


class InMemory:
    """Acknowledges each event once it has slept; loses the acknowledgement of `lost` of them."""

    def __init__(self, slow_s: float = 0.0, lost: int = 0) -> None:
        self._slow_s, self._lost = slow_s, lost
        self.events: list[tuple[str, bytes]] = []
        self.warm: set[str] = set()

    def prepare(self) -> None: ...

    def write(self, size: int, go_on: Callable[[int], bool]) -> None: ...

    def round_trips(self, size: int, count: int) -> list[float]:
        return [1.0] * 50 + [0.001] * (count - 50)

    def read(self, count: int) -> None: ...

    def write_steadily(
        self, keys: Sequence[str], waits: Iterable[float], event: Callable[[], bytes], acked: Acked | None
    ) -> None:
        self.warm |= set(keys)
        for number, wait in enumerate(waits):
            if wait:
                clock.sleep(wait)
            sent = clock.perf_counter()
            self.events.append((keys[number % len(keys)], event()))
            if self._slow_s:
                clock.sleep(self._slow_s)
            if acked is not None and number >= self._lost:
                acked(sent)

    def read_tail(self, begin: Callable[[], None], take: Callable[[bytes], bool]) -> None:
        begin()
        assert not all([take(WARM) for _ in KEYS] + [take(event) for _, event in self.events])


def acknowledged(peer: InMemory, pace: Pace, warm_s: float = 0.0) -> Figures:
    return peer_program._acknowledged(peer, KEYS, SMALL, pace, warm_s)


def test_a_rate_that_is_kept() -> None:
    peer = InMemory()
    found = acknowledged(peer, Pace(500, 0.4))
    assert 0.6 < found["share"] < 1.01
    assert len(peer.events) == 200
    assert {len(event) for _, event in peer.events} == {SMALL}
    assert [key for key, _ in peer.events] == KEYS[:200]
    assert peer.warm == set(KEYS)


def test_a_rate_that_is_not_kept_ends_after_twice_the_time() -> None:
    peer = InMemory(slow_s=0.01)
    began = clock.perf_counter()
    found = acknowledged(peer, Pace(1_000, 0.3))
    assert 0.5 < clock.perf_counter() - began < 2
    assert found["share"] < 0.2
    assert found["p50"] >= 10
    assert 10 <= len(peer.events) <= 61


def test_an_acknowledgement_that_never_comes_is_an_error() -> None:
    with pytest.raises(AssertionError, match="40 events were written, and 39 acknowledged"):
        acknowledged(InMemory(lost=1), Pace(400, 0.1))


def test_the_first_seconds_of_a_rate_are_not_counted() -> None:
    class SlowAtFirst(InMemory):
        def write_steadily(
            self, keys: Sequence[str], waits: Iterable[float], event: Callable[[], bytes], acked: Acked | None
        ) -> None:
            assert acked is not None
            began = None
            for wait in waits:
                clock.sleep(wait)
                began = began or clock.perf_counter()
                sent = clock.perf_counter()
                acked(sent - (5.0 if sent < began + 0.2 else 0.0))

    found = acknowledged(SlowAtFirst(), Pace(500, 0.5), warm_s=0.3)
    assert found["p99"] < 1_000
    assert acknowledged(SlowAtFirst(), Pace(500, 0.5), warm_s=-10)["p99"] > 4_000


def test_lone_events_are_counted_without_the_first() -> None:
    assert peer_program._round_trip(InMemory(), 0.02) == {"p50": 1.0, "p99": 1.0}
    assert peer_program._round_trip(InMemory(), 0.01)["p99"] == 1_000.0


def test_a_tail_has_times_of_writing_and_an_end(capsys: pytest.CaptureFixture[str]) -> None:
    peer = InMemory()
    found = peer_program._write_tail(peer, 0.05)
    assert 0.4 < found["share"] < 1.01
    *written, (_, last) = peer.events
    assert len(written) == 4_000
    assert last == END
    stamps = [int.from_bytes(event[:8], "big") for _, event in written]
    assert stamps == sorted(stamps)
    assert 0.39e9 < stamps[-1] - stamps[0] < 0.81e9
    read = peer_program._read_tail(peer, 0.05)
    assert capsys.readouterr().out == "reading\n"
    assert 0 < read["p50"] <= read["p99"] < 1_000


def test_a_tail_of_fewer_ends_with_the_end() -> None:
    peer = InMemory()
    peer_program._write_tail(peer, 0.05)
    del peer.events[2_000:4_000]
    found = peer_program._read_tail(peer, 0.05)
    assert found["p50"] > 0
