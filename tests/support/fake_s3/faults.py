"""What goes wrong in a fake S3, and how long it takes. Chances are from 0 to 1, for each request that it can befall."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, fields

STANDARD = {"put": (30, 150), "get": (15, 100), "list": (30, 200), "delete": (20, 120)}
EXPRESS = {"put": (5, 15), "get": (3, 10), "list": (8, 25), "delete": (4, 12)}
_P99 = 2.326  # standard deviations above the middle


@dataclass
class Faults:
    conflict: float = 0.0  # a put is answered by 409, and nothing is stored
    slow_down: float = 0.0  # a request is answered by 503 SlowDown
    lost_requests: float = 0.0  # the connection breaks, and nothing was done
    lost_answers: float = 0.0  # it was done, and the connection breaks
    late_puts: float = 0.0  # the connection breaks, and the put is done up to `late_s` later
    late_s: float = 0.3
    latency_ms: dict[str, tuple[float, float]] = field(default_factory=dict)  # median and p99 of put, get, list, delete
    expired: bool = False  # as S3 answers a session's token that has expired: with that token
    denied: list[str] = field(default_factory=list)  # put, get, list, delete
    locked: bool = False  # no object may be deleted or replaced
    versioned: bool = False
    ignored: list[str] = field(default_factory=list)  # conditions that aren't kept: create, match
    kept_times: int = 1_000_000  # an object's conditions are, and then ignored
    etags_wrong: bool = False  # what If-Match compares is never what was told
    lists_unordered: bool = False
    lists_late_s: float = 0.0  # listings show what was there then
    stale_gets_s: float = 0.0  # and so do gets, as no store does that can be used
    page: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def update(self, **changed: object) -> None:
        known = {one.name for one in fields(self)}
        for name, value in changed.items():
            if name not in known:
                raise ValueError(f"there is no fault {name!r}, only {', '.join(sorted(known))}")
            setattr(self, name, value)
        if "seed" in changed:
            self._random = random.Random(self.seed)

    def hits(self, chance: float) -> bool:
        return chance > 0 and self._random.random() < chance

    def pause_s(self, kind: str) -> float:
        """Lognormal, as an object store's latencies roughly are."""
        if kind not in self.latency_ms:
            return 0.0
        median, p99 = self.latency_ms[kind]
        return self._random.lognormvariate(math.log(median), math.log(p99 / median) / _P99) / 1000

    def lateness_s(self) -> float:
        return self._random.random() * self.late_s
