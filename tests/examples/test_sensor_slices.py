"""The sensors' fold for any division into batches, and a checker that detects each kind of fault."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from examples.sensor_slices.checker import compare
from examples.sensor_slices.waves import NEW, THRESHOLD, Aggregate, Run, State, fold, sensors, truth, value_of

HIGH, LOW = THRESHOLD + 1, THRESHOLD


def rows(values: list[int]) -> list[tuple[int, int, str, str]]:
    return [(number, value, f"cut {number}", f"cut {number + 1}") for number, value in enumerate(values)]


@given(st.lists(st.sampled_from([HIGH, LOW]), max_size=30), st.data())
def test_waves_are_the_same_for_any_batches(values: list[int], data: st.DataObject) -> None:
    _, whole = fold(NEW, rows(values))
    state, found = NEW, []
    cuts = sorted(data.draw(st.sets(st.integers(0, len(values)))))
    for low, high in zip([0, *cuts], [*cuts, len(values)], strict=True):
        state, more = fold(State.from_text(state.as_text()), rows(values)[low:high])
        found += more
    assert found == whole
    assert [one.number for one in found] == list(range(1, len(found) + 1))
    for one in found:
        assert set(values[one.first : one.last + 1]) == {HIGH}
        assert values[one.last + 1] == LOW
        assert one.first == 0 or values[one.first - 1] == LOW
        assert (one.start, one.end) == (f"cut {one.first}", f"cut {one.last + 1}")
    runs = "".join("h" if value == HIGH else " " for value in values).split(" ")
    assert len(found) + (state.open is not None) == sum(map(bool, runs))


def test_unfinished_wave_is_kept_in_state() -> None:
    state, found = fold(NEW, rows([HIGH, HIGH]))
    assert found == []
    assert state == State(0, Run(1, 0, 1, "cut 0", "cut 2"))


def test_the_truth_of_a_wave() -> None:
    values = [value_of("sensor-1", number) for number in range(700)]
    assert max(values) == 1000
    assert min(values) == -1000
    first, *_ = whole = truth(["sensor-1"], 700)
    assert set(values[first.first : first.last + 1]) == {*values[first.first : first.last + 1]} - {
        *range(THRESHOLD + 1)
    }
    assert first.total == sum(values[first.first : first.last + 1])
    assert first.events == first.last - first.first + 1
    assert sum(one.events for one in whole) == sum(value > THRESHOLD for value in values)
    assert len(truth(["sensor-1"], whole[-1].last + 1)) == len(whole) - 1, "an unfinished wave is not a slice"
    assert len(truth(sensors(), 3_000)) == 52


def test_checker_detects_each_fault() -> None:
    expected = truth(sensors(3), 1_000)
    right = [msgspec.json.encode(one) for one in expected]
    assert compare(expected, right).is_right
    another = Aggregate("sensor-1", 0, 1, 2, 3, 4)
    for wrong, faults in (
        (right[1:], (1, 0, 0)),
        ([*right, msgspec.json.encode(another)], (0, 1, 0)),
        ([*right, right[0]], (0, 0, 1)),
    ):
        verdict = compare(expected, wrong)
        assert (verdict.missing, verdict.wrong, verdict.twice) == faults
        assert not verdict.is_right
    assert not compare([], []).is_right, "empty results prove nothing"
