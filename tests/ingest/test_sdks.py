"""Requests of the SDKs of OpenTelemetry (JavaScript) and CloudEvents (JavaScript, Python), as applications use them.

The JavaScript SDKs are found by NODE_PATH, where `npm install` has put them.
"""

from __future__ import annotations

import json
import subprocess
from typing import Any

import httpx
import pytest

import nadi
from nadi.standalone.embedded import EmbeddedServer

LOGS = """
const { LoggerProvider, BatchLogRecordProcessor } = require("@opentelemetry/sdk-logs");
const { resourceFromAttributes } = require("@opentelemetry/resources");
const [address, kind] = process.argv.slice(1);
const { OTLPLogExporter } = require("@opentelemetry/exporter-logs-otlp-" + kind);
const exporter = new OTLPLogExporter({
  url: address + "/v1/logs", headers: { "Nadi-Stream": "in/logs-" + kind }, compression: "gzip",
});
const resource = resourceFromAttributes({ "service.name": "shop" });
const provider = new LoggerProvider({ resource, processors: [new BatchLogRecordProcessor({ exporter })] });
const cut = "Zoe \\u{1f600}".slice(0, 5);
const body = { cut, n: 7, big: 2 ** 53, x: 1.5, no: false, nil: null, list: [1, [2], {}], raw: new Uint8Array([251]) };
const record = { timestamp: 1800000000000, observedTimestamp: 1800000000000, severityNumber: 13, eventName: "sale" };
const logger = provider.getLogger("till", "2");
(async () => {
  for (const given of ["first", body, "third"]) logger.emit({ ...record, body: given, attributes: { [cut]: cut } });
  await provider.forceFlush();
  await provider.shutdown();
})();
"""
EVENTS = """
const { CloudEvent, HTTP } = require("cloudevents");
const [address] = process.argv.slice(1);
(async () => {
  for (const [mode, subject] of [["binary", "plain"], ["structured", "plain"], ["structured", '"100%25" \\u20ac']]) {
    const data = { price: 1.5, subject };
    const event = new CloudEvent({ id: "1", source: "/shop", type: "sold", subject, partitionkey: "till 1", data });
    const { headers, body } = HTTP[mode](event);
    const answer = await fetch(address, { method: "POST", headers, body });
    if (!answer.ok) throw new Error(await answer.text());
  }
})();
"""


def node(script: str, *arguments: str) -> None:
    done = subprocess.run(["node", "-e", script, *arguments], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def needs(package: str) -> pytest.MarkDecorator:
    try:
        done = subprocess.run(["node", "-e", f'require("{package}")'], capture_output=True, timeout=60)
        is_there = done.returncode == 0
    except OSError:
        is_there = False
    return pytest.mark.skipif(not is_there, reason=f"{package} for Node.js isn't in NODE_PATH")


def stored(manager: nadi.StreamManager, stream: str) -> list[bytes]:
    tail = manager.stream_info("in", stream).tail
    return [event.data for event in manager.read_events("in", stream, end=tail)]


@needs("@opentelemetry/exporter-logs-otlp-proto")
@needs("@opentelemetry/exporter-logs-otlp-http")
def test_otlp_of_javascript_is_the_same_events_by_its_exporters(
    server: EmbeddedServer, manager: nadi.StreamManager
) -> None:
    found = []
    for kind in ("http", "proto"):
        manager.create_stream("in", f"logs-{kind}")
        node(LOGS, str(server.rest_uri), kind)
        found.append(stored(manager, f"logs-{kind}"))
    assert found[0] == found[1]
    first, second, third = map(json.loads, found[0])
    assert (first["body"], third["body"]) == ("first", "third")
    assert second == {
        "timeUnixNano": "1800000000000000000",
        "observedTimeUnixNano": "1800000000000000000",
        "severityNumber": 13,
        "eventName": "sale",
        "body": {
            "cut": "Zoe \ufffd",
            "n": 7,
            "big": 2**53,
            "x": 1.5,
            "no": False,
            "nil": None,
            "list": [1, [2], {}],
            "raw": "+w==",
        },
        "attributes": {"Zoe \ufffd": "Zoe \ufffd"},
        "resource": {"service.name": "shop"},
        "scope": {"name": "till", "version": "2"},
    }


@needs("cloudevents")
def test_cloud_events_of_javascript_are_stored(server: EmbeddedServer, manager: nadi.StreamManager) -> None:
    manager.create_stream("in", "from-javascript")
    node(EVENTS, f"{server.rest_uri}/v1/scopes/in/streams/from-javascript/events")
    events = [json.loads(event) for event in stored(manager, "from-javascript")]
    assert [event["data"]["subject"] for event in events] == ["plain", "plain", '"100%25" €']
    assert all((event["subject"], event["partitionkey"]) == (event["data"]["subject"], "till 1") for event in events)


@pytest.mark.parametrize("subject", ["plain", 'a "b"', '"quoted"', "Euro € 😀", "100%25", "a b"])
def test_cloud_events_of_python_are_the_same_in_each_mode(
    server: EmbeddedServer, manager: nadi.StreamManager, subject: str
) -> None:
    http = pytest.importorskip("cloudevents.core.bindings.http", reason="the package comes with nadi[functions]")
    from cloudevents.core.v1.event import CloudEvent

    stream = f"from-python-{subject.encode().hex()}"
    manager.create_stream("in", stream)
    attributes: dict[str, Any] = {"id": "1", "source": "/shop", "type": "sold", "datacontenttype": "application/json"}
    event = CloudEvent({**attributes, "subject": subject, "partitionkey": subject}, {"price": 1.5})
    for message in (http.to_binary_event(event), http.to_structured_event(event)):
        path = f"{server.rest_uri}/v1/scopes/in/streams/{stream}/events"
        assert httpx.post(path, headers=message.headers, content=message.body).json() == {"written": 1}
    binary, structured = map(json.loads, stored(manager, stream))
    assert binary == structured
    assert (binary["subject"], binary["data"]) == (subject, {"price": 1.5})
