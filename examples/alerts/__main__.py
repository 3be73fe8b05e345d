"""Alerts within milliseconds: a household's meters, and Spark in real-time mode, through nadi's Kafka door.

A producer writes the meters' readings into the topic `meters`. A Spark job writes an alert to `alerts` when a meter has
used more than its hour's budget. A consumer measures the time from each reading to its alert, and compares the alerts
with a plain computation. The job also runs by hand: examples.alerts.job.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from uuid import uuid4

import msgspec
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console

from examples.alerts.budgets import ALERTS, METERS, expected
from examples.programs import Program
from examples.running import ExampleError, Place, ended, parser, place
from examples.smart_meters.extract import YEAR
from examples.smart_meters.readings import Reading, read_readings
from examples.smart_meters.slices import micro_wh

console = Console(highlight=False)
_START_S, _WARM_S, _ALERT_S = 120.0, 10, 30.0


class Alert(msgspec.Struct, frozen=True):
    meter: str
    hour: int
    used: int
    sent: int  # when the reading was sent, in ns


def main() -> int:
    arguments = parser("examples.alerts", __doc__)
    arguments.add_argument("--readings", type=int, default=20_000, metavar="N", help="to send (default: 20000)")
    arguments.add_argument("--a-second", type=int, default=1_000, metavar="N", help="readings (default: 1000)")
    options = arguments.parse_args()
    return ended(lambda: run(options), console)


def run(options: argparse.Namespace) -> bool:
    readings = list(islice(read_readings(YEAR), options.readings))
    alerts = expected(readings)
    with place(options, "alerts", console) as here, _door(here) as kafka:
        console.print(f"Kafka clients: {kafka}")
        _create_topics(kafka)
        with Program(
            here.folder, "examples.alerts.job", "--kafka", kafka, "--checkpoint", str(here.folder / "job")
        ) as job:
            consumer = _consumer(kafka)
            producer = Producer({"bootstrap.servers": kafka, "enable.idempotence": True, "linger.ms": 0})
            _await_job(job, producer, consumer)
            console.print("Java compiles what it runs often")
            _send(producer, [Reading("kitchen", 0, 1.0)] * (_WARM_S * options.a_second), options.a_second)
            writing = threading.Thread(target=_send, args=(producer, readings, options.a_second), daemon=True)
            writing.start()
            found: dict[tuple[str, int], int] = {}
            waits_ms: list[float] = []
            while len(found) < len(alerts):
                alert = _next(consumer, _ALERT_S + options.readings / options.a_second)
                waits_ms.append((time.time_ns() - alert.sent) / 1e6)
                found[alert.meter, alert.hour] = alert.used
            writing.join()
            consumer.close()
            job.finish()
    p50, p99 = statistics.median(waits_ms), statistics.quantiles(waits_ms, n=100)[98]
    console.print(f"{len(found)} alerts for {len(readings)} readings, after {p50:.1f} ms (p50) and {p99:.1f} ms (p99)")
    is_right = found == alerts
    console.print("equal to the plain computation" if is_right else "[red]the plain computation differs[/red]")
    return is_right


@contextmanager
def _door(here: Place) -> Iterator[str]:
    command = [
        sys.executable,
        "-m",
        "nadi",
        "kafka",
        "--controller",
        here.controller,
        "--scope",
        here.scope,
        "--port",
        "0",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            address = next((line.split()[-1] for line in process.stdout if "bootstrap.servers" in line), None)
            if address is None:
                raise ExampleError("nadi kafka did not start")
            yield address
        finally:
            process.terminate()


def _create_topics(kafka: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka})
    for created in admin.create_topics([NewTopic(topic, 1, 1) for topic in (METERS, ALERTS)]).values():
        created.result()


def _consumer(kafka: str) -> Consumer:
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": uuid4().hex})
    consumer.assign([TopicPartition(ALERTS, 0, 0)])
    return consumer


def _await_job(job: Program, producer: Producer, consumer: Consumer) -> None:
    """Send a reading above its budget, of 1970, and wait for its alert."""
    console.print("Spark starts")
    _send(producer, [Reading("kitchen", 0, 1e6)], 1)
    deadline = time.monotonic() + _START_S
    while consumer.poll(0.2) is None:
        job.check()
        if time.monotonic() > deadline:
            raise ExampleError(f"no alert within {_START_S:.0f} s")


def _next(consumer: Consumer, limit_s: float) -> Alert:
    message = consumer.poll(limit_s)
    if message is None:
        raise ExampleError(f"no alert within {limit_s:.0f} s")
    if message.error() is not None:
        raise ExampleError(str(message.error()))
    return msgspec.json.decode(message.value(), type=Alert)


def _send(producer: Producer, readings: Sequence[Reading], a_second: int) -> None:
    began = time.perf_counter()
    for number, reading in enumerate(readings):
        while time.perf_counter() < began + number / a_second:
            producer.poll(0.001)
        fields = {"meter": reading.meter, "at": reading.at, "micro_wh": micro_wh(reading.wh), "sent": time.time_ns()}
        producer.produce(METERS, msgspec.json.encode(fields), reading.meter)
    producer.flush(_ALERT_S)


if __name__ == "__main__":
    sys.exit(main())
