"""All registries of metrics, and parsing of an endpoint's text with the official parsers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import httpx
from prometheus_client import Metric
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from nadi.access import audit, quotas
from nadi.cluster.admin import metrics as cluster
from nadi.controller import metrics as controller
from nadi.observe.metrics import MetricDefinition
from nadi.segmentstore import metrics as store
from nadi.standalone import assembly as server

OF_STREAMS = controller.MEANINGS
OF_A_SERVER = {**server.MEANINGS, **store.MEANINGS, **audit.MEANINGS}
OF_A_DOOR = {"nadi_kafka_group_lag_records": OF_A_SERVER.pop("nadi_kafka_group_lag_records")}  # tests/kafka
OF_A_CLUSTER = cluster.MEANINGS
OF_QUOTAS = quotas.MEANINGS  # of servers with quotas
ALL: Mapping[str, MetricDefinition] = {**OF_STREAMS, **OF_A_SERVER, **OF_A_CLUSTER, **OF_A_DOOR, **OF_QUOTAS}
OPEN = {"Accept": "application/openmetrics-text; version=1.0.0"}
Auth = tuple[str, str] | None


def scraped(rest: str, auth: Auth = None) -> str:
    return httpx.get(f"{rest}/metrics", timeout=60, auth=auth).raise_for_status().text


def parsed(text: str) -> list[Metric]:
    return list(text_string_to_metric_families(text))


def scraped_open(rest: str, auth: Auth = None) -> list[Metric]:
    """Return the metrics as OpenMetrics, whose parser is strict: a violation raises ValueError."""
    answer = httpx.get(f"{rest}/metrics", timeout=60, auth=auth, headers=OPEN).raise_for_status()
    return list(openmetrics.text_string_to_metric_families(answer.text))  # type: ignore[no-untyped-call]


def series(metrics: Iterable[Metric]) -> dict[str, list[dict[str, str]]]:
    """Return the labels of all samples, by sample name."""
    by_name: dict[str, list[dict[str, str]]] = {}
    for family in metrics:
        for sample in family.samples:
            by_name.setdefault(sample.name, []).append(dict(sample.labels))
    return by_name
