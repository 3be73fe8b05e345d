"""The faults and latencies of a fake S3. Probabilities are from 0 to 1, per applicable request."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, fields

STANDARD = {"put": (30, 150), "get": (15, 100), "list": (30, 200), "delete": (20, 120)}
EXPRESS = {"put": (5, 15), "get": (3, 10), "list": (8, 25), "delete": (4, 12)}
_P99 = 2.326  # standard deviations above the median


@dataclass
class Faults:
    conflict: float = 0.0  # a put is answered with 409, and nothing is stored
    slow_down: float = 0.0  # a request is answered with 503 SlowDown
    lost_requests: float = 0.0  # the connection breaks before the request is executed
    lost_answers: float = 0.0  # the connection breaks after the request is executed
    late_puts: float = 0.0  # the connection breaks, and the put is executed up to `late_s` later
    late_s: float = 0.3
    latency_ms: dict[str, tuple[float, float]] = field(default_factory=dict)  # median and p99 of put, get, list, delete
    expired: bool = False  # replies as S3 does to an expired session token, quoting that token
    denied: list[str] = field(default_factory=list)  # put, get, list, delete
    locked: bool = False  # objects can't be deleted or replaced
    versioned: bool = False
    ignored: list[str] = field(default_factory=list)  # conditions that are ignored: create, match
    kept_times: int = 1_000_000  # how often an object's conditions are respected before they are ignored
    etags_wrong: bool = False  # If-Match never matches a reported etag
    lists_unordered: bool = False
    lists_late_s: float = 0.0  # listings show an earlier state
    stale_gets_s: float = 0.0  # and so do gets, as in no usable store
    page: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def update(self, **changed: object) -> None:
        known = {one.name for one in fields(self)}
        for name, value in changed.items():
            if name not in known:
                raise ValueError(f"unknown fault {name!r}: use {', '.join(sorted(known))}")
            setattr(self, name, value)
        if "seed" in changed:
            self._random = random.Random(self.seed)

    def hits(self, chance: float) -> bool:
        return chance > 0 and self._random.random() < chance

    def pause_s(self, kind: str) -> float:
        """Return a lognormal pause, similar to an object store's latencies."""
        if kind not in self.latency_ms:
            return 0.0
        median, p99 = self.latency_ms[kind]
        return self._random.lognormvariate(math.log(median), math.log(p99 / median) / _P99) / 1000

    def lateness_s(self) -> float:
        return self._random.random() * self.late_s
