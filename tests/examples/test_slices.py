"""The fold that finds slices: the same for any batches, and equal to a plain search."""

from collections import Counter
from collections.abc import Sequence
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from examples.smart_meters.extract import EXTRACT
from examples.smart_meters.readings import METERS, MINUTE_MS, Reading, read_readings, week
from examples.smart_meters.slices import (
    RULES,
    Position,
    Rule,
    Slice,
    Stretch,
    finish,
    fold,
    micro_wh,
    replayed_micro_wh,
)

LOW, HIGH = 1.0, 100.0  # Wh in a minute: 60 W and 6 kW
Positioned = Sequence[tuple[Reading, Position]]

rules = st.builds(
    Rule,
    threshold_w=st.just(1_000.0),
    min_length_ms=st.integers(0, 6).map(lambda minutes: minutes * MINUTE_MS),
    max_gap_ms=st.integers(0, 4).map(lambda minutes: minutes * MINUTE_MS),
)


@st.composite
def streams(draw: st.DrawFn) -> Positioned:
    """Readings of one meter with missing minutes and odd energies, each at an offset of some segment."""
    minute, readings = 0, []
    steps = st.tuples(st.sampled_from([1, 1, 1, 1, 2, 3, 6]), st.sampled_from([LOW, HIGH, 1 / 3, 200 / 3]))
    for offset, (step, wh) in enumerate(draw(st.lists(steps, max_size=60))):
        minute += step
        readings.append((Reading("main", minute * MINUTE_MS, wh), (7, offset * 56)))
    return readings


def all_slices(rule: Rule, readings: Positioned) -> list[Slice]:
    state, slices = fold(rule, None, readings)
    return slices + finish(rule, state)


def searched(rule: Rule, readings: Positioned) -> list[Slice]:
    """Search the whole stream at once: group the high readings, sum the energy between."""
    high = [i for i, (reading, _) in enumerate(readings) if reading.wh * 60 > rule.threshold_w]
    groups: list[list[int]] = []
    for i in high:
        at = readings[i][0].at
        if groups and at - readings[groups[-1][-1]][0].at - MINUTE_MS <= rule.max_gap_ms:
            groups[-1].append(i)
        else:
            groups.append([i])
    slices = []
    for group in groups:
        inside = readings[group[0] : group[-1] + 1]
        start, end = inside[0][0].at, inside[-1][0].at + MINUTE_MS
        if end - start >= rule.min_length_ms:
            energy = replayed_micro_wh(reading for reading, _ in inside)
            slices.append(Slice("main", start, end, energy, inside[0][1], inside[-1][1]))
    return slices


@given(rules, streams(), st.data())
def test_slices_are_the_same_for_any_batches(rule: Rule, readings: Positioned, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(readings)))))
    state: Stretch | None = None
    slices: list[Slice] = []
    for start, end in zip([0, *cuts], [*cuts, len(readings)], strict=True):
        before = None if state is None else state.as_text()
        state_after, finished = fold(rule, state, readings[start:end])
        assert before == (None if state is None else state.as_text()), "fold leaves the old state alone"
        slices += finished
        state = None if state_after is None else Stretch.from_text(state_after.as_text())
    slices += finish(rule, state)
    assert slices == all_slices(rule, readings)


@given(rules, streams())
def test_slices_match_a_plain_search(rule: Rule, readings: Positioned) -> None:
    assert all_slices(rule, readings) == searched(rule, readings)


@given(rules, streams(), st.randoms(use_true_random=False))
def test_replay_in_any_order_has_equal_energy(rule: Rule, readings: Positioned, random: Random) -> None:
    for one in all_slices(rule, readings):
        inside = [r for r, position in readings if one.first_position <= position <= one.last_position]
        random.shuffle(inside)
        assert replayed_micro_wh(inside) == one.energy_micro_wh


def test_the_state_is_short_and_reads_back() -> None:
    state = Stretch("climate", 1_289_174_400_000, (4294967296, 123_456), 1_289_174_460_000, (0, 1), 5, 6)
    assert Stretch.from_text(state.as_text()) == state
    assert len(state.as_text()) < 100


def minutes(*at_and_wh: tuple[int, float]) -> Positioned:
    return [(Reading("main", at * MINUTE_MS, wh), (0, i)) for i, (at, wh) in enumerate(at_and_wh)]


RULE = Rule(threshold_w=1_000, min_length_ms=0, max_gap_ms=2 * MINUTE_MS)


def test_a_gap_may_be_as_long_as_the_rule_says() -> None:
    (one,) = all_slices(RULE, minutes((0, HIGH), (1, LOW), (2, LOW), (3, HIGH)))
    assert (one.start, one.end, one.energy_wh) == (0, 4 * MINUTE_MS, 2 * HIGH + 2 * LOW)
    assert len(all_slices(RULE, minutes((0, HIGH), (1, LOW), (2, LOW), (3, LOW), (4, HIGH)))) == 2


def test_missing_readings_are_a_gap() -> None:
    assert len(all_slices(RULE, minutes((0, HIGH), (3, HIGH)))) == 1
    assert len(all_slices(RULE, minutes((0, HIGH), (4, HIGH)))) == 2


def test_power_at_the_threshold_is_low() -> None:
    assert all_slices(RULE, minutes((0, 1_000 / 60))) == []


def test_a_late_reading_counts_and_a_jump_back_ends_the_stretch() -> None:
    (one,) = all_slices(RULE, minutes((5, HIGH), (7, HIGH), (6, HIGH)))
    assert (one.end, one.last_position, one.energy_wh) == (8 * MINUTE_MS, (0, 2), 3 * HIGH)
    assert [s.start for s in all_slices(RULE, minutes((50, HIGH), (0, HIGH)))] == [50 * MINUTE_MS, 0]


def test_rounding_a_reading_keeps_a_week_exact_to_the_printed_digits() -> None:
    main = [reading for reading in read_readings(EXTRACT, *week(2009, 45)) if reading.meter == "main"]
    assert round(sum(micro_wh(reading.wh) for reading in main) / 1e6, 3) == 209_813.467


def test_a_week_has_some_dozens_of_slices() -> None:
    counts: Counter[int] = Counter()
    for year in (2009, 2010):
        readings = list(read_readings(EXTRACT, *week(year, 45)))
        for meter in METERS:
            own = [(r, (0, i)) for i, r in enumerate(readings) if r.meter == meter]
            counts[year] += len(all_slices(RULES[meter], own))
    assert counts == {2009: 50, 2010: 65}
