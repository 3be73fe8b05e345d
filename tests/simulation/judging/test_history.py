"""The judge of what clients saw: it lets pass what may be, and nothing else."""

from __future__ import annotations

import pytest

from nadi.controller.state.history import EpochHistory as Epochs
from nadi.controller.state.history import first_epoch
from nadi.controller.state.records import TxnState
from nadi.model.watermark import SegmentPosition, Watermark
from nadi.naming import segment_id

from .history import BrokenWordError, Counter, History, Noted, Written
from .told import Known, SegmentsTold, TakenBackError

SEGMENT = "home/meters/0.#epoch.0"
STREAM = "home/meters"
LATER = segment_id(2, 1)


def _framed(*events: Written) -> bytes:
    return b"".join(b"\0\0\0\0" + len(event.payload).to_bytes(4, "big") + event.payload for event in events)


def _history(*acknowledged: bool) -> tuple[History, list[Written]]:
    history = History()
    events = [Written(STREAM, "key", number, acknowledged=is_so) for number, is_so in enumerate(acknowledged)]
    return history, [history.written(event) for event in events]


def test_what_may_be_is_found_right() -> None:
    history, (one, two, _) = _history(True, False, False)
    data = _framed(one, two)
    assert history.read(SEGMENT, 0, data + b"\0\0") == len(data)
    history.check(STREAM, {SEGMENT: (0, len(data))})
    history, _ = _history()
    history.cuts = {STREAM: [{0: 11}], "home/others": [{0: 10}]}
    history.check(STREAM, {SEGMENT: (11, 20)})
    history.cuts = {STREAM: [{LATER: 0}]}
    history.check(STREAM, {})


@pytest.mark.parametrize("acknowledged", [True, False])
def test_what_was_acknowledged_or_read_and_is_gone_is_told(acknowledged: bool) -> None:
    history, (one, two) = _history(acknowledged, acknowledged)
    one.segment = two.segment = SEGMENT
    history.read(SEGMENT, 0, _framed(one))
    with pytest.raises(BrokenWordError, match="is not there" if acknowledged else "was read at"):
        history.check(STREAM, {SEGMENT: (0, len(_framed(one)) if acknowledged else 0)})


@pytest.mark.parametrize(
    ("stream", "cut", "segments"),
    [("home/others", {LATER: 0}, {}), (STREAM, {0: 5, LATER: 0}, {}), (STREAM, {0: 11}, {SEGMENT: (10, 20)})],
)
def test_what_was_truncated_though_nobody_asked_is_told(
    stream: str, cut: dict[int, int], segments: dict[str, tuple[int, int]]
) -> None:
    history, (one,) = _history(False)
    history.read(SEGMENT, 0, _framed(one))
    history.cuts = {stream: [cut]}
    with pytest.raises(BrokenWordError, match="nobody asked for" if segments else "is gone"):
        history.check(STREAM, segments)


def test_watermarks_that_go_back_or_pass_an_event_are_told() -> None:
    epochs = Epochs([first_epoch(1, 0)])

    def mark(lower: int, offset: int) -> Watermark:
        return Watermark(lower, lower, (SegmentPosition(0, 0.0, 1.0, offset),))

    history = History(notes=[Noted(time=7, acknowledged=8, position={0: 30})])
    history.check_watermarks([mark(5, 10), mark(8, 20), mark(9, 30)], epochs)
    for wrong, told in (
        ([mark(5, 10), mark(5, 20)], "is followed by"),
        ([mark(5, 10), mark(6, 9)], "lies before"),
        ([mark(5, 10), mark(9, 20)], "lies behind"),
    ):
        with pytest.raises(BrokenWordError, match=told):
            history.check_watermarks(wrong, epochs)


@pytest.mark.parametrize(
    ("first", "then", "told"),
    [
        ([], b"\0\0\0\0\0\0\0\1x", "which nobody wrote"),
        ([], b"\1\0\0\0\0\0\0\1x", "no event begins"),
        ([], [0, 0], r"is at .* and at"),
        ([0], [1], "there was"),
    ],
)
def test_events_that_are_other_than_written_are_told(first: list[int], then: list[int] | bytes, told: str) -> None:
    history, events = _history(True, True)
    history.read(SEGMENT, 0, _framed(*(events[at] for at in first)))
    with pytest.raises(BrokenWordError, match=told):
        history.read(SEGMENT, 0, then if isinstance(then, bytes) else _framed(*(events[at] for at in then)))


def test_another_order_is_told() -> None:
    history, (one, two) = _history(True, True)
    history.read(SEGMENT, 0, _framed(two, one))
    with pytest.raises(BrokenWordError, match="in the order"):
        history.check(STREAM, {SEGMENT: (0, len(_framed(one, two)))})


@pytest.mark.parametrize("state", TxnState)
def test_half_a_transaction_is_told(state: TxnState) -> None:
    history = History()
    events = [Written(STREAM, f"{n}", n, transaction=7, segment=SEGMENT) for n in range(2)]
    history.read(SEGMENT, 0, _framed(history.written(events[0])))
    history.written(events[1])
    history.transactions[7] = state
    with pytest.raises(BrokenWordError, match="transaction 7"):
        history.check(STREAM, {SEGMENT: (0, len(_framed(events[0])))})


def test_an_answer_to_a_commit_that_does_not_hold_is_told() -> None:
    history = History()
    history.written(Written(STREAM, "key", 1, transaction=7, segment=SEGMENT))
    history.transactions[7] = history.promised[7] = TxnState.ABORTED
    history.check(STREAM, {})
    history.promised[7] = TxnState.COMMITTED
    with pytest.raises(BrokenWordError, match="transaction 7 is"):
        history.check(STREAM, {})


def test_a_lost_count_is_told() -> None:
    counter = Counter(tried=2)
    counter.acknowledged(1)
    counter.seen(2, 1)
    with pytest.raises(BrokenWordError, match="a counter is at 0"):
        counter.seen(0, 1)
    with pytest.raises(BrokenWordError, match="two have counted"):
        counter.acknowledged(1)


# --- what was told of segments --------------------------------------------------------------------------


def test_a_replaced_segment_is_never_current_again() -> None:
    told = SegmentsTold()
    told.of_current([0, 1], told.known)
    before = told.known
    told.of_current([1, 2, 3], before)
    told.of_current([0, 1], before)  # of answers at the same time none is the first
    with pytest.raises(TakenBackError, match=r"\[0\] are current"):
        told.of_current([0, 1], told.known)


def test_what_has_successors_keeps_them_and_what_was_there_is_known_for_good() -> None:
    told = SegmentsTold()
    told.of_current([0, 1], told.known)
    first = told.known
    told.of_successors(0, [2, 3], first)
    told.of_successors(0, [], first)  # asked for before that was known
    with pytest.raises(TakenBackError, match="segment 0 has no successors"):
        told.of_successors(0, [], told.known)
    told.of_none(7, told.known)
    told.of_none(0, Known())
    with pytest.raises(TakenBackError, match="segment 0 is not there"):
        told.of_none(0, told.known)
