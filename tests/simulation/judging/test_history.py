"""The judge of what clients saw: it lets pass what may be, and nothing else."""

from __future__ import annotations

import pytest

from nadi.controller.state.history import History as Epochs
from nadi.controller.state.history import first_epoch
from nadi.controller.state.records import TxnState
from nadi.model.watermark import SegmentPosition, Watermark
from nadi.naming import segment_id

from .history import BrokenWordError, Counter, History, Noted, Written

SEGMENT = "home/meters/0.#epoch.0"


def _framed(*events: Written) -> bytes:
    return b"".join(b"\0\0\0\0" + len(event.payload).to_bytes(4, "big") + event.payload for event in events)


def _history(*acknowledged: bool) -> tuple[History, list[Written]]:
    history = History()
    events = [Written("home/meters", "key", number, acknowledged=is_so) for number, is_so in enumerate(acknowledged)]
    return history, [history.written(event) for event in events]


def test_what_may_be_is_found_right() -> None:
    history, (one, two, _) = _history(True, False, False)
    data = _framed(one, two)
    assert history.read(SEGMENT, 0, data + b"\0\0") == len(data)
    history.check("home/meters", {SEGMENT: (0, len(data))})


def test_what_was_acknowledged_and_is_gone_is_told() -> None:
    history, (one, two) = _history(True, True)
    one.segment = two.segment = SEGMENT
    history.read(SEGMENT, 0, _framed(one))
    with pytest.raises(BrokenWordError, match="is not there"):
        history.check("home/meters", {SEGMENT: (0, len(_framed(one)))})


def test_what_was_read_and_is_gone_is_told() -> None:
    history, (one,) = _history(False)
    history.read(SEGMENT, 0, _framed(one))
    with pytest.raises(BrokenWordError, match="was read at"):
        history.check("home/meters", {SEGMENT: (0, 0)})


def test_a_segment_that_is_gone_is_told() -> None:
    history, (one,) = _history(False)
    history.read(SEGMENT, 0, _framed(one))
    later = segment_id(2, 1)
    for stream, cut in (("home/others", {later: 0}), ("home/meters", {0: 5, later: 0})):
        history.cuts = {stream: [cut]}
        with pytest.raises(BrokenWordError, match="is gone"):
            history.check("home/meters", {})
    history.cuts = {"home/meters": [{later: 0}]}
    history.check("home/meters", {})


def test_a_truncation_that_nobody_asked_for_is_told() -> None:
    history, _ = _history()
    history.cuts = {"home/meters": [{0: 11}], "home/others": [{0: 10}]}
    history.check("home/meters", {SEGMENT: (11, 20)})
    with pytest.raises(BrokenWordError, match="nobody asked for"):
        history.check("home/meters", {SEGMENT: (10, 20)})


def test_bytes_that_nobody_wrote_are_told() -> None:
    history, _ = _history()
    with pytest.raises(BrokenWordError, match="which nobody wrote"):
        history.read(SEGMENT, 0, b"\0\0\0\0\0\0\0\1x")
    with pytest.raises(BrokenWordError, match="no event begins"):
        history.read(SEGMENT, 0, b"\1\0\0\0\0\0\0\1x")


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


def test_two_events_at_one_offset_are_told() -> None:
    history, (one, two) = _history(True, True)
    history.read(SEGMENT, 0, _framed(one))
    with pytest.raises(BrokenWordError, match="there was"):
        history.read(SEGMENT, 0, _framed(two))


def test_an_event_that_is_there_twice_is_told() -> None:
    history, (one,) = _history(True)
    with pytest.raises(BrokenWordError, match=r"is at .* and at"):
        history.read(SEGMENT, 0, _framed(one, one))


def test_another_order_is_told() -> None:
    history, (one, two) = _history(True, True)
    history.read(SEGMENT, 0, _framed(two, one))
    with pytest.raises(BrokenWordError, match="in the order"):
        history.check("home/meters", {SEGMENT: (0, len(_framed(one, two)))})


def test_half_a_transaction_is_told() -> None:
    for state in TxnState:
        history = History()
        events = [Written("home/meters", f"{n}", n, transaction=7, segment=SEGMENT) for n in range(2)]
        history.read(SEGMENT, 0, _framed(history.written(events[0])))
        history.written(events[1])
        history.transactions[7] = state
        with pytest.raises(BrokenWordError, match="transaction 7"):
            history.check("home/meters", {SEGMENT: (0, len(_framed(events[0])))})


def test_a_lost_count_is_told() -> None:
    counter = Counter(tried=2)
    counter.acknowledged(1)
    counter.seen(2, 1)
    with pytest.raises(BrokenWordError, match="a counter is at 0"):
        counter.seen(0, 1)
    with pytest.raises(BrokenWordError, match="two have counted"):
        counter.acknowledged(1)


def test_an_answer_to_a_commit_that_does_not_hold_is_told() -> None:
    history = History()
    history.written(Written("home/meters", "key", 1, transaction=7, segment=SEGMENT))
    history.transactions[7] = history.promised[7] = TxnState.ABORTED
    history.check("home/meters", {})
    history.promised[7] = TxnState.COMMITTED
    with pytest.raises(BrokenWordError, match="transaction 7 is"):
        history.check("home/meters", {})
