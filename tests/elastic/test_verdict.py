"""The judge of the events read, compared with a naive one that inspects each event in turn."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pyarrow as pa

from bench.elastic.event import HEADER, headers
from bench.elastic.scalings import Sample, scalings_of, seconds_until_all_under
from bench.elastic.verdict import Verdict, judge
from nadi.model.reports import SegmentReport


def slowly(written: list[int], read: list[tuple[int, int]]) -> Verdict:
    known = [(key, number) for key, number in read if key < len(written) and number < written[key]]
    counts = Counter(known)
    late = 0
    for key in range(len(written)):
        first = list(dict.fromkeys(number for one, number in known if one == key))
        late += sum(any(other > number for other in first[:at]) for at, number in enumerate(first))
    return Verdict(
        sum(written), len(read), sum(written) - len(counts), len(known) - len(counts), late, len(read) - len(known)
    )


def judged(written: list[int], read: list[tuple[int, int]]) -> Verdict:
    keys, numbers = (np.array([one[at] for one in read], np.int64) for at in (0, 1))
    return judge(np.array(written, np.int64), keys, numbers)


def test_judge_agrees_with_the_naive_judge() -> None:
    for seed in range(200):
        chance = random.Random(seed)
        written = [chance.randrange(6) for _ in range(chance.randint(1, 5))]
        read = [(key, number) for key, count in enumerate(written) for number in range(count)]
        for _ in range(chance.randrange(4)):
            if read and chance.random() < 0.5:
                read.insert(chance.randrange(len(read)), chance.choice([*read, (9, 0), (0, 99)]))
            if read and chance.random() < 0.5:
                del read[chance.randrange(len(read))]
            if read and chance.random() < 0.5:
                read.append(read.pop(chance.randrange(len(read))))
        assert judged(written, read) == slowly(written, read), seed


def test_keys_may_be_read_in_any_order_and_a_key_may_not() -> None:
    assert judged([2, 2], [(1, 0), (0, 0), (1, 1), (0, 1)]).is_good
    assert not judged([2, 2], [(1, 1), (0, 0), (1, 0), (0, 1)]).is_good
    assert not judged([2], []).is_good


def test_headers_of_a_slice_of_an_array() -> None:
    events = pa.array([HEADER.pack(number, number * 2, 2**40) + b"x" * number for number in range(5)], pa.binary())
    assert headers(events[2:4])["sequence"].tolist() == [4, 6]
    assert headers(events[:0])["sequence"].tolist() == []


def report(segment_id: int, low: float, high: float, created_ms: int, replaced_ms: int | None) -> SegmentReport:
    return SegmentReport(segment_id, low, high, created_ms, replaced_ms, 0, 0)


def test_reaction_time_counts_from_the_load_change() -> None:
    left, right, whole = 1 << 32 | 1, 1 << 32 | 2, 2 << 32 | 3
    history = [
        report(0, 0, 1, 0, 10_000),
        report(left, 0, 0.5, 10_000, 90_000),
        report(right, 0.5, 1, 10_000, 90_000),
        report(whole, 0, 1, 90_000, None),
    ]
    samples = [Sample(at, {0: rate}, 0) for at, rate in ((4_000, 120), (5_000, 90), (6_000, 130), (9_000, 300))]
    samples += [
        Sample(at, {left: 40, right: rate}, 0) for at, rate in ((11_000, 60), (12_000, 70), (30_000, 10), (80_000, 20))
    ]
    split, merge = scalings_of(history, samples, 100)
    assert (split.kind, split.replaced, split.made, split.before, split.after) == ("split", 1, 2, 1, 2)
    assert split.reaction_s == 4.0
    assert (merge.kind, merge.before, merge.after) == ("merge", 2, 1)
    assert merge.reaction_s == 79.0
    assert seconds_until_all_under([*samples, Sample(81_000, {whole: 3}, 0)], 5_500, 100) == 5.5
    assert seconds_until_all_under(samples[:4], 5_500, 100) is None
