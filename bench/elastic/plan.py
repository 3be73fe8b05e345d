"""A plan of writing: lines of events with their keys, used in turn and again from the start, and a rate per second.

A plan is a folder, so that writers in any language can follow it: `lines` has `key number TAB routing key TAB text`
on each line, `rates` a number of events for each second.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Line:
    key: str
    text: str


def save(folder: Path, lines: Sequence[Line], rates: Sequence[int]) -> None:
    numbers: dict[str, int] = {}
    folder.mkdir(parents=True)
    with (folder / "lines").open("w") as file:
        for line in lines:
            file.write(f"{numbers.setdefault(line.key, len(numbers))}\t{line.key}\t{line.text}\n")
    (folder / "rates").write_text("".join(f"{rate}\n" for rate in rates))


def load(folder: Path) -> tuple[list[tuple[int, str, bytes]], list[int]]:
    """Return the lines, as key number, routing key and text, and the events for each second."""
    lines = []
    for line in (folder / "lines").read_text().splitlines():
        number, key, text = line.split("\t", 2)
        lines.append((int(number), key, text.encode()))
    return lines, rates_of(folder)


def rates_of(folder: Path) -> list[int]:
    return [int(rate) for rate in (folder / "rates").read_text().split()]


def follow(day: Sequence[float], seconds: int, low: int, top: int) -> list[int]:
    """Return the rates of a day's course, in any number of equal parts from midnight to midnight, over that many
    seconds.

    >>> follow([0, 10, 20, 0], 4, 50, 1050)
    [50, 550, 1050, 50]
    """
    highest = max(day)
    rates = []
    for second in range(seconds):
        place = second * len(day) / seconds
        before, after = day[int(place)], day[(int(place) + 1) % len(day)]
        share = (before + (after - before) * (place % 1)) / highest
        rates.append(round(low + (top - low) * share))
    return rates


def made_day(parts: int = 288) -> list[float]:
    """Return a day with a morning and a larger afternoon, if the real data is unavailable."""
    peaks = ((10.5, 1.6, 0.7), (14.0, 2.0, 1.0))
    hours = [24 * part / parts for part in range(parts)]
    return [sum(top * math.exp(-(((hour - at) / width) ** 2)) for at, width, top in peaks) for hour in hours]


def made_lines(count: int, keys: int, seed: int) -> list[Line]:
    """Return lines of about 60 bytes whose keys are unequally frequent, like customers; each has less than a
    hundredth."""
    chance = random.Random(seed)
    weights = [1 / (number + 50) for number in range(keys)]
    chosen = chance.choices(range(keys), weights, k=count)
    return [
        Line(f"customer {key}", f"made {number} {chance.randrange(10**40):040}") for number, key in enumerate(chosen)
    ]


def made_lines_with_hot_key(count: int, seed: int) -> list[Line]:
    """Return lines of 43 keys; one key has 92 % of them."""
    chance = random.Random(seed)
    keys = ["at home" if chance.random() < 0.92 else f"abroad {chance.randrange(42)}" for _ in range(count)]
    return [Line(key, f"made {number} {chance.randrange(10**40):040}") for number, key in enumerate(keys)]
