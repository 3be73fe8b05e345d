"""The dashboard and the alerts match the metrics: each query is compared with servers' samples, and evaluated by
Prometheus where it is installed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from confluent_kafka import Consumer, Producer, TopicPartition

import nadi
from nadi.client import QuotaLimits, StreamManager
from nadi.standalone.embedded import EmbeddedServer
from tests.access.support import PASSWORD
from tests.metrics.conftest import ADMIN
from tests.metrics.support import ALL, parsed, scraped, series
from tests.support.ports import free_port
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
DASHBOARD = json.loads((ROOT / "deploy/grafana/nadi.json").read_text())
ALERTS = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())
RULES: dict[str, dict[str, Any]] = {rule["alert"]: rule for group in ALERTS["groups"] for rule in group["rules"]}
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = [(f"{panel['title']} {target['refId']}", target["expr"]) for panel in PANELS for target in panel["targets"]]
EXPRESSIONS = [*QUERIES, *((name, rule["expr"]) for name, rule in RULES.items())]
NAME = re.compile(r"\b((?:nadi|process)_\w+)\s*(\{[^}]*\})?")
MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"([^"]*)"')
OF_PROMETHEUS = {"job", "instance", "le"}
Found = dict[str, list[dict[str, str]]]
needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="Prometheus isn't installed, so PromQL can't be evaluated: apt-get install prometheus",
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[EmbeddedServer]]:
    store = tmp_path_factory.mktemp("cluster").as_uri()
    with (
        nadi.embedded(store=store, containers=2, rest_port=0, kafka_port=0) as one,
        nadi.embedded(store=store, rest_port=0, kafka_port=0) as two,
        StreamManager(one.controller_uri) as manager,
    ):
        manager.create_scope("home")
        manager.create_quota("user/ann", QuotaLimits(bytes_in=10**9, connections=9))
        manager.create_stream("home", "meters", 4)
        with manager.create_writer("home", "meters") as writer:
            for number in range(20):
                writer.write_event(b"a", routing_key=f"{number}")
        producer = Producer({"bootstrap.servers": one.kafka_address})
        producer.produce("payments", b"a", partition=0)
        assert producer.flush(60) == 0
        consumer = Consumer({"bootstrap.servers": one.kafka_address, "group.id": "billing"})
        consumer.commit(offsets=[TopicPartition("payments", 0, 0)], asynchronous=False)
        consumer.close()
        until(lambda: any("nadi_kafka_group_lag_records{" in scraped(server.rest_uri) for server in (one, two)))
        until(lambda: all("nadi_quota_limit{" in scraped(server.rest_uri) for server in (one, two)))
        yield [one, two]


@pytest.fixture(scope="module")
def found(busy: EmbeddedServer, cluster: list[EmbeddedServer]) -> Found:
    """Return the labels of all samples of all servers, by name."""
    texts = [scraped(busy.rest_uri, ADMIN), *(scraped(one.rest_uri) for one in cluster)]
    together: Found = {}
    for text in texts:
        for name, labels in series(parsed(text)).items():
            together.setdefault(name, []).extend(labels)
    return together


def matches(labels: dict[str, str], matcher: tuple[str, str, str]) -> bool:
    label, operator, value = matcher
    if label in OF_PROMETHEUS:
        return True
    is_so = bool(re.fullmatch(value, labels.get(label, ""))) if "~" in operator else labels.get(label, "") == value
    return is_so != operator.startswith("!")


@pytest.mark.parametrize(("what", "expression"), EXPRESSIONS, ids=[what for what, _ in EXPRESSIONS])
def test_each_query_matches_samples_and_labels(what: str, expression: str, found: Found) -> None:
    asked = NAME.findall(expression)
    assert asked or what == "NadiDown"
    for name, text in asked:
        matchers = MATCHER.findall(text)
        assert len(matchers) == text.count('"') // 2, "all matchers were parsed"
        assert name in found, f"{what}: no server has {name}"
        assert any(all(matches(labels, one) for one in matchers) for labels in found[name]), f"{what}: {name}{text}"
    grouped = {
        label.strip() for text in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression) for label in text.split(",")
    }
    assert grouped <= OF_PROMETHEUS.union(*(labels for name, _ in asked for labels in found[name]))


def test_each_metric_has_a_query() -> None:
    text = " ".join(expression for _, expression in EXPRESSIONS)
    watched = {re.sub(r"_(bucket|sum|count|total)$", "", name) for name, _ in NAME.findall(text)}
    assert watched >= set(ALL)


def test_dashboard_queries_use_its_variables() -> None:
    variables = {one["name"] for one in DASHBOARD["templating"]["list"]} | {"__rate_interval"}
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(PANELS))) <= variables
    for what, expression in QUERIES:
        for name, text in NAME.findall(expression):
            assert 'job=~"$job", instance=~"$instance"' in text, (what, name)


def test_each_alert_is_explained() -> None:
    explained = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/alerts.md").read_text(), re.MULTILINE)
    assert sorted(explained) == sorted(RULES)
    for rule in RULES.values():
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"]["summary"].endswith(".")


# --- with Prometheus itself ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def prometheus(
    tmp_path_factory: pytest.TempPathFactory, busy: EmbeddedServer, cluster: list[EmbeddedServer]
) -> Iterator[httpx.Client]:
    """A Prometheus that has scraped all servers several times."""
    folder, port = tmp_path_factory.mktemp("prometheus"), free_port()

    def job(name: str, servers: list[EmbeddedServer], **more: Any) -> dict[str, Any]:
        targets = [one.rest_uri.removeprefix("http://") for one in servers]
        return {"job_name": name, "static_configs": [{"targets": targets}], **more}

    jobs = [
        job("nadi", [busy], basic_auth={"username": "root", "password": PASSWORD}),
        job("nadi-cluster", cluster),
    ]
    times = {"scrape_interval": "1s", "scrape_timeout": "1s"}
    (folder / "prometheus.yml").write_text(yaml.safe_dump({"global": times, "scrape_configs": jobs}))
    process = subprocess.Popen(
        [
            "prometheus",
            f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=error",
        ]
    )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            until(lambda: is_ready(client))
            until(lambda: len(asked(client, "count_over_time(up[1m]) > 4 and up == 1")) == 3)
            yield client
    finally:
        process.terminate()
        process.wait(60)


def is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/-/ready").status_code == 200
    except httpx.TransportError:
        return False


def asked(client: httpx.Client, expression: str) -> list[Any]:
    answer = client.get("/api/v1/query", params={"query": expression}).json()
    assert answer["status"] == "success", (expression, answer)
    return list(answer["data"]["result"])


def filled_in(expression: str) -> str:
    """Fill in variables like Grafana does."""
    return expression.replace("$__rate_interval", "1m").replace("$job", ".*").replace("$instance", ".*")


@needs_prometheus
@pytest.mark.parametrize(("what", "query"), QUERIES, ids=[what for what, _ in QUERIES])
def test_each_query_of_the_dashboard_has_a_result(what: str, query: str, prometheus: httpx.Client) -> None:
    assert asked(prometheus, filled_in(query)), what


FIRING: dict[str, list[tuple[str, str]]] = {  # series that make each alert fire
    "NadiDown": [("up", "0x100")],
    "NadiContainerDown": [('nadi_store_container_up{container="3"}', "0x100")],
    "NadiContainersRecover": [("nadi_store_recoveries_total", "0+1x100")],
    "NadiDataDamaged": [('nadi_store_damaged_ranges{container="3"}', "2x100")],
    "NadiScrubFoundDamage": [("nadi_store_scrub_damages", "1x100")],
    "NadiScrubOverdue": [("nadi_store_scrub_age_seconds", "2000000x100")],
    "NadiAppendsSlow": [
        ('nadi_store_append_seconds_bucket{stage="total",le="1.0"}', "0+50x100"),
        ('nadi_store_append_seconds_bucket{stage="total",le="2.5"}', "0+100x100"),
        ('nadi_store_append_seconds_bucket{stage="total",le="+Inf"}', "0+100x100"),
    ],
    "NadiLogSlow": [
        ('nadi_store_append_seconds_bucket{stage="sync",le="0.5"}', "0+50x100"),
        ('nadi_store_append_seconds_bucket{stage="sync",le="1.0"}', "0+100x100"),
        ('nadi_store_append_seconds_bucket{stage="sync",le="+Inf"}', "0+100x100"),
    ],
    "NadiWritersWait": [("nadi_store_throttles_total", "0+100x100")],
    "NadiAppendsRefused": [("nadi_store_appends_refused_total", "0+100x100")],
    "NadiPeersMemory": [
        ('nadi_peers_buffered_bytes{direction="sending"}', "95x100"),
        ('nadi_peers_max_bytes{direction="sending"}', "100x100"),
    ],
    "NadiLogFull": [('nadi_store_log_full{container="3"}', "1x100")],
    "NadiLogGrows": [('nadi_store_log_bytes{container="3"}', "60x100"), ("nadi_store_log_max_bytes", "100x100")],
    "NadiTier2Down": [('nadi_store_tier2_up{container="3"}', "0x100")],
    "NadiTier2Behind": [('nadi_store_tier2_lag_seconds{container="3"}', "301x100")],
    "NadiSnapshotsFail": [('nadi_store_snapshot_age_seconds{container="3"}', "601x100")],
    "NadiCheckpointsFail": [('nadi_store_checkpoint_age_seconds{container="3"}', "121x100")],
    "NadiConnectionsRefused": [('nadi_connections_refused_total{port="store"}', "0+1x100")],
    "NadiOpenFiles": [("process_open_fds", "90x100"), ("process_max_fds", "100x100")],
    "NadiLoginsFail": [("nadi_logins_failed_total", "0+100x100")],
    "NadiControllerSilent": [("nadi_metrics_complete", "0x100")],
    "NadiWorkflowStuck": [("nadi_unfinished_workflows", "1x100")],
    "NadiHotKey": [('nadi_stream_hot_keys{scope="home",stream="meters"}', "1x100")],
    "NadiReaderGroupLate": [
        ('nadi_reader_group_lag_seconds{scope="home",reader_group="g",stream="home/meters"}', "301x100")
    ],
    "NadiReaderGroupWithoutReaders": [
        ('nadi_reader_group_readers{scope="home",reader_group="g"}', "0x100"),
        ('nadi_reader_group_lag_bytes{scope="home",reader_group="g",stream="home/meters"}', "5x100"),
    ],
    "NadiClusterLeaseLost": [("nadi_cluster_lease_valid", "0x100")],
    "NadiClusterServerDead": [('nadi_cluster_servers{state="dead"}', "1x100")],
    "NadiClusterContainersMissing": [("nadi_cluster_containers", "6x100"), ("nadi_cluster_all_containers", "8x100")],
    "NadiClusterWithoutController": [("nadi_cluster_controller", "0x100")],
    "NadiClusterFences": [("nadi_cluster_fenced_total", "0+1x100")],
    "NadiClusterLogFails": [("nadi_cluster_log_errors_total", "0+60x100")],
}
MOVED = [  # a container was handed over between two servers' scrapes, so both reported it for a moment
    ('nadi_cluster_containers{job="nadi",instance="one:9091"}', "4x4 4 3x80"),
    ('nadi_cluster_containers{job="nadi",instance="two:9091"}', "4x4 5 5x80"),
    ('nadi_cluster_all_containers{job="nadi",instance="one:9091"}', "8x90"),
    ('nadi_cluster_all_containers{job="nadi",instance="two:9091"}', "8x90"),
]
LATER = "70m"


def with_target(name: str) -> str:
    metric, brace, labels = name.partition("{")
    return f'{metric}{{job="nadi",instance="one:9091"{"," + labels if brace else "}"}'


def expected(name: str) -> dict[str, Any]:
    """Return the alert with the labels of the result and of the rule."""
    rule, labels = RULES[name], {"job": "nadi", "instance": "one:9091"}
    first = FIRING[name][0][0]
    labels |= {label: value for label, _, value in MATCHER.findall(first) if label not in ("le", "stage")}
    if "by (job) " in rule["expr"]:
        labels = {"job": "nadi"}
    summary = re.sub(r"{{ \$labels\.(\w+) }}", lambda match: labels[match[1]], rule["annotations"]["summary"])
    return {"exp_labels": {**labels, **rule["labels"]}, "exp_annotations": {"summary": summary}}


@needs_prometheus
def test_each_alert_fires_when_it_should(tmp_path: Path) -> None:
    assert FIRING.keys() == RULES.keys()
    tests = [
        {
            "interval": "1m",
            "input_series": [{"series": with_target(one), "values": values} for one, values in found],
            "alert_rule_test": [{"eval_time": LATER, "alertname": name, "exp_alerts": [expected(name)]}],
        }
        for name, found in FIRING.items()
    ]
    run_tests(tmp_path, tests)


@needs_prometheus
def test_moving_container_does_not_count_as_missing(tmp_path: Path) -> None:
    silent = {"eval_time": LATER, "alertname": "NadiClusterContainersMissing", "exp_alerts": []}
    series = [{"series": one, "values": values} for one, values in MOVED]
    run_tests(tmp_path, [{"interval": "1m", "input_series": series, "alert_rule_test": [silent]}])


def run_tests(tmp_path: Path, tests: list[dict[str, Any]]) -> None:
    rules = str(ROOT / "deploy/prometheus/alerts.yml")
    (tmp_path / "tests.yml").write_text(yaml.safe_dump({"rule_files": [rules], "tests": tests}))
    done = subprocess.run(
        ["promtool", "test", "rules", str(tmp_path / "tests.yml")], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
