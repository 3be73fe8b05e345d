"""The judge of what clients saw accepts exactly what the guarantees allow."""

from __future__ import annotations

import pytest

from nadi.controller.state.history import EpochHistory as Epochs
from nadi.controller.state.history import first_epoch
from nadi.controller.state.records import TxnState
from nadi.model.watermark import SegmentPosition, Watermark
from nadi.naming import segment_id

from .history import Counter, GuaranteeError, History, Noted, Written
from .segment_answers import ContradictionError, Known, SegmentAnswers

SEGMENT = "home/meters/0.#epoch.0"
STREAM = "home/meters"
LATER = segment_id(2, 1)


def _framed(*events: Written) -> bytes:
    return b"".join(b"\0\0\0\0" + len(event.payload).to_bytes(4, "big") + event.payload for event in events)


def _history(*acknowledged: bool) -> tuple[History, list[Written]]:
    history = History()
    events = [Written(STREAM, "key", number, acknowledged=is_so) for number, is_so in enumerate(acknowledged)]
    return history, [history.written(event) for event in events]


def test_allowed_histories_pass() -> None:
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
def test_missing_events_are_detected(acknowledged: bool) -> None:
    history, (one, two) = _history(acknowledged, acknowledged)
    one.segment = two.segment = SEGMENT
    history.read(SEGMENT, 0, _framed(one))
    with pytest.raises(GuaranteeError, match="missing" if acknowledged else "was read at 0 "):
        history.check(STREAM, {SEGMENT: (0, len(_framed(one)) if acknowledged else 0)})


@pytest.mark.parametrize(
    ("stream", "cut", "segments"),
    [("home/others", {LATER: 0}, {}), (STREAM, {0: 5, LATER: 0}, {}), (STREAM, {0: 11}, {SEGMENT: (10, 20)})],
)
def test_unrequested_truncation_is_detected(
    stream: str, cut: dict[int, int], segments: dict[str, tuple[int, int]]
) -> None:
    history, (one,) = _history(False)
    history.read(SEGMENT, 0, _framed(one))
    history.cuts = {stream: [cut]}
    with pytest.raises(GuaranteeError, match="starts at 10" if segments else "deleted"):
        history.check(STREAM, segments)


def test_invalid_watermarks_are_detected() -> None:
    epochs = Epochs([first_epoch(1, 0)])

    def mark(lower: int, offset: int) -> Watermark:
        return Watermark(lower, lower, (SegmentPosition(0, 0.0, 1.0, offset),))

    history = History(notes=[Noted(time=7, acknowledged=8, position={0: 30})])
    history.check_watermarks([mark(5, 10), mark(8, 20), mark(9, 30)], epochs)
    for wrong, message in (
        ([mark(5, 10), mark(5, 20)], "is followed by"),
        ([mark(5, 10), mark(6, 9)], "precedes"),
        ([mark(5, 10), mark(9, 20)], "follows"),
    ):
        with pytest.raises(GuaranteeError, match=message):
            history.check_watermarks(wrong, epochs)


@pytest.mark.parametrize(
    ("first", "then", "message"),
    [
        ([], b"\0\0\0\0\0\0\0\1x", "never written"),
        ([], b"\1\0\0\0\0\0\0\1x", "invalid event"),
        ([], [0, 0], "twice"),
        ([0], [1], "but now"),
    ],
)
def test_unexpected_events_are_detected(first: list[int], then: list[int] | bytes, message: str) -> None:
    history, events = _history(True, True)
    history.read(SEGMENT, 0, _framed(*(events[at] for at in first)))
    with pytest.raises(GuaranteeError, match=message):
        history.read(SEGMENT, 0, then if isinstance(then, bytes) else _framed(*(events[at] for at in then)))


def test_wrong_order_is_detected() -> None:
    history, (one, two) = _history(True, True)
    history.read(SEGMENT, 0, _framed(two, one))
    with pytest.raises(GuaranteeError, match=r"\[1, 0\]"):
        history.check(STREAM, {SEGMENT: (0, len(_framed(one, two)))})


@pytest.mark.parametrize("state", TxnState)
def test_partial_transaction_is_detected(state: TxnState) -> None:
    history = History()
    events = [Written(STREAM, f"{n}", n, transaction=7, segment=SEGMENT) for n in range(2)]
    history.read(SEGMENT, 0, _framed(history.written(events[0])))
    history.written(events[1])
    history.transactions[7] = state
    with pytest.raises(GuaranteeError, match="transaction 7"):
        history.check(STREAM, {SEGMENT: (0, len(_framed(events[0])))})


def test_broken_commit_promise_is_detected() -> None:
    history = History()
    history.written(Written(STREAM, "key", 1, transaction=7, segment=SEGMENT))
    history.transactions[7] = history.promised[7] = TxnState.ABORTED
    history.check(STREAM, {})
    history.promised[7] = TxnState.COMMITTED
    with pytest.raises(GuaranteeError, match="transaction 7"):
        history.check(STREAM, {})


def test_lost_count_is_detected() -> None:
    counter = Counter(tried=2)
    counter.acknowledged(1)
    counter.seen(2, 1)
    with pytest.raises(GuaranteeError, match="counter is at 0"):
        counter.seen(0, 1)
    with pytest.raises(GuaranteeError, match="counted to 1"):
        counter.acknowledged(1)


# --- answers about segments -----------------------------------------------------------------------------


def test_a_replaced_segment_is_never_current_again() -> None:
    answers = SegmentAnswers()
    answers.add_current([0, 1], answers.known)
    before = answers.known
    answers.add_current([1, 2, 3], before)
    answers.add_current([0, 1], before)  # concurrent answers have no order
    with pytest.raises(ContradictionError, match=r"\[0\]"):
        answers.add_current([0, 1], answers.known)


def test_successors_and_known_segments_are_permanent() -> None:
    answers = SegmentAnswers()
    answers.add_current([0, 1], answers.known)
    first = answers.known
    answers.add_successors(0, [2, 3], first)
    answers.add_successors(0, [], first)  # requested before the successors were known
    with pytest.raises(ContradictionError, match="segment 0 has no successors"):
        answers.add_successors(0, [], answers.known)
    answers.add_missing(7, answers.known)
    answers.add_missing(0, Known())
    with pytest.raises(ContradictionError, match="segment 0 does not exist"):
        answers.add_missing(0, answers.known)
