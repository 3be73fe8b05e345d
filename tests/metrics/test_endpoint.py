"""`/metrics` of a real server, read by both official parsers: names, help texts and bounds."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import nadi
from nadi.client import StreamManager
from nadi.standalone.embedded import EmbeddedServer
from tests.metrics.conftest import ADMIN
from tests.metrics.support import (
    ALL,
    OF_A_SERVER,
    OF_STREAMS,
    parsed,
    scraped,
    scraped_open,
    series,
)

UNITS = ("_bytes", "_seconds", "_events", "_per_second")  # base units, last except for _total
OTHER_UNITS = re.compile(r"_(milliseconds|ms|minutes|hours|kilobytes|kb|mb|mib|percent|count|sum|bucket|total)\b")
BOUNDED = {  # allowed label values, for labels that don't name streams and groups
    "stage": {"queue", "frame", "sync", "total"},
    "source": {"memory", "storage"},
    "state": {"starting", "running", "recovering", "failed", "alive", "dead"},
    "kind": {"tiered", "compacted", "split", "merge"},
    "direction": {"receiving", "sending"},
    "work": {"tiering", "checkpoints"},
    "port": {"store", "rest", "kafka"},
    "container": {"0", "1"},
    "version": {nadi.__version__},
}
NAMED = {"scope", "stream", "reader_group"}


def of_nadi(text: str) -> dict[str, list[dict[str, str]]]:
    return {name: samples for name, samples in series(parsed(text)).items() if name.startswith("nadi_")}


def test_all_defined_metrics_are_exposed(busy: EmbeddedServer) -> None:
    names = {family.name.removesuffix("_total") for family in parsed(scraped(busy.rest_uri, ADMIN))}
    assert {name for name in names if name.startswith("nadi_")} == set(OF_STREAMS) | set(OF_A_SERVER)
    assert "process_resident_memory_bytes" in names


def test_each_metric_matches_its_definition(busy: EmbeddedServer) -> None:
    for family in parsed(scraped(busy.rest_uri, ADMIN)):
        if family.name.startswith("nadi_"):
            meaning = ALL[family.name.removesuffix("_total")]
            assert (family.type, family.documentation) == (meaning.kind, meaning.help)
            assert family.samples
            for sample in family.samples:
                assert set(sample.labels) - {"le"} == set(meaning.labels), sample


def test_open_metrics_has_the_same(busy: EmbeddedServer) -> None:
    """The strict parser ensures that families and samples are unique, and that histograms are cumulative."""
    strict = scraped_open(busy.rest_uri, ADMIN)
    assert {family.name for family in strict if family.name.startswith("nadi_")} == set(OF_STREAMS) | set(OF_A_SERVER)
    plain = of_nadi(scraped(busy.rest_uri, ADMIN))
    assert {name for name in series(strict) if name.startswith("nadi_")} == set(plain)


@pytest.mark.parametrize("name", ALL)
def test_names_follow_the_conventions(name: str) -> None:
    meaning = ALL[name]
    assert re.fullmatch(r"nadi_[a-z0-9]+(_[a-z0-9]+)*", name)
    assert not OTHER_UNITS.search(name), "counters get their _total from the exposition, and units are base units"
    for unit in ("bytes", "seconds"):
        assert f"_{unit}" not in name or name.endswith(UNITS), "the unit comes last"
    if meaning.kind == "histogram":
        assert name.endswith("_seconds")
    assert re.fullmatch(r"[A-Z0-9].+\.", meaning.help), "each help text is a sentence"
    assert all(re.fullmatch(r"[a-z_]+", label) and label != "le" for label in meaning.labels)


def test_labels_are_bounded(busy: EmbeddedServer) -> None:
    for name, samples in of_nadi(scraped(busy.rest_uri, ADMIN)).items():
        for labels in samples:
            for label, value in labels.items():
                assert label in NAMED or label == "le" or value in BOUNDED[label], (name, labels)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool isn't installed: apt-get install prometheus")
def test_promtool_reports_no_problems(busy: EmbeddedServer) -> None:
    text = scraped(busy.rest_uri, ADMIN)
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, text=True, capture_output=True, timeout=60)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_many_streams_make_at_most_a_hundred_series(tmp_path: Path) -> None:
    with (
        nadi.embedded(tmp_path, rest_port=0, environment={"NADI_LIMITS": "metrics_names_s=60"}) as server,
        StreamManager(server.controller_uri) as manager,
    ):
        manager.create_scope("home")
        before = series(parsed(scraped(server.rest_uri)))
        for number in range(150):
            manager.create_stream("home", f"s{number}", 1)
        with manager.create_writer("home", "s7") as writer:
            writer.write_event(b"a")
        samples = of_nadi(scraped(server.rest_uri))
        while len(samples["nadi_stream_segments"]) < 101:  # metrics may be a second old
            samples = of_nadi(scraped(server.rest_uri))
        assert all(len(labels) <= 101 for name, labels in samples.items() if not name.endswith("_bucket"))
        assert sum(map(len, samples.values())) < 900
        of_a_store = {name: samples[name] for name in samples if name.startswith("nadi_store_")}
        assert {name: len(before[name]) for name in of_a_store} == {name: len(one) for name, one in of_a_store.items()}
