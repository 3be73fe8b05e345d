"""A server without a disk, over an object store with S3's latencies: acknowledgements with each profile of its log, the
number of requests, and their list price at S3.

The store is the tests' fake, in a separate process; each request waits as long as one to S3 (30 ms for a put at the
median, 150 at p99), without network limits. Prices are of S3 standard in us-east-1: puts and lists 5 $, gets 0.4 $ per
million.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import nadi
from bench.measure import SCOPE, STREAM, Figure, open_stream
from bench.steady import steadily
from nadi.config import WAL_PROFILES_S
from tests.support.fake_s3 import EXPRESS, STANDARD

_RATE, _SECONDS, _WARM_S, _IDLE_S = 500, 20.0, 3.0, 10.0
_EVENT_BYTES = 1_000
_MONTH_S = 30 * 24 * 3600
_DOLLARS = {"put": 5e-6, "list": 5e-6, "get": 0.4e-6}


class Store:
    """The fake's process."""

    def __init__(self, endpoint: str) -> None:
        self.options = {"endpoint": endpoint, "access_key_id": "a", "secret_access_key": "b", "region": "us-east-1"}
        self._endpoint = endpoint

    def slow(self, latency_ms: dict[str, tuple[int, int]]) -> None:
        data = json.dumps({"latency_ms": latency_ms}).encode()
        urllib.request.urlopen(urllib.request.Request(f"{self._endpoint}/-/faults", data, method="PUT")).close()

    def counts(self) -> dict[str, int]:
        with urllib.request.urlopen(f"{self._endpoint}/-/counts") as answer:
            return dict(json.load(answer))


@contextmanager
def store() -> Iterator[Store]:
    command = [sys.executable, "-m", "tests.support.fake_s3"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield Store(process.stdout.readline().strip())
        finally:
            process.terminate()


def diskless(folder: Path) -> list[Figure]:
    """Measure a steady 500 events of 1 KB per second; then an idle server, like most clusters at night."""
    figures: list[Figure] = []
    for profile in WAL_PROFILES_S:
        figures += _profile(f"profile {profile}", profile, STANDARD)
    return figures + _profile("profile latency, S3 Express's latencies", "latency", EXPRESS)


def _profile(name: str, profile: str, latency_ms: dict[str, tuple[int, int]]) -> list[Figure]:
    with store() as s3:
        s3.slow(latency_ms)
        began = time.perf_counter()
        with nadi.embedded(
            store=f"s3://bucket/{profile}", store_options=s3.options, wal_profile=profile, containers=1
        ) as server:
            started_s = time.perf_counter() - began
            with nadi.StreamManager(server.controller_uri) as manager:
                open_stream(manager)
                with manager.create_writer(SCOPE, STREAM) as writer:
                    event = bytes(_EVENT_BYTES)
                    before = s3.counts()
                    waits = steadily(
                        lambda number: writer.write_event(event, str(number % 100)),
                        _RATE,
                        _SECONDS,
                        writer.flush,
                        warm_s=_WARM_S,
                    )
                    busy = _rates(before, s3.counts(), _SECONDS)
                    time.sleep(_IDLE_S)
                    before = s3.counts()
                    time.sleep(_IDLE_S)
                    idle = _rates(before, s3.counts(), _IDLE_S)
    figure = partial(Figure, target=None)
    return [
        figure(f"{name}: start of a new cluster's first server", started_s, "s"),
        figure(f"{name}: acknowledgement p50 at {_RATE} events/s", waits.ms(50), "ms"),
        figure(f"{name}: p99", waits.ms(99), "ms"),
        figure(f"{name}: puts a second, busy", busy["put"], "1/s"),
        figure(f"{name}: requests a month, always busy", _price(busy), "$"),
        figure(f"{name}: requests a month, idle", _price(idle), "$"),
    ]


def _rates(before: dict[str, int], after: dict[str, int], seconds: float) -> dict[str, float]:
    return {kind: (after.get(kind, 0) - before.get(kind, 0)) / seconds for kind in _DOLLARS}


def _price(rates: dict[str, float]) -> float:
    return sum(rate * _DOLLARS[kind] for kind, rate in rates.items()) * _MONTH_S
