"""Any server of a cluster accepts events, and a request sent to two servers is written once."""

from __future__ import annotations

from pathlib import Path

import httpx

import nadi


def test_a_request_to_each_of_two_servers(tmp_path: Path) -> None:
    store = (tmp_path / "store").as_uri()
    path, keyed = "/v1/scopes/home/streams/meters/events", {"idempotency-key": "k"}
    lines = b"".join(b'{"meter": "m%d"}\n' % number for number in range(40))
    with (
        nadi.embedded(store=store, rest_port=0) as one,
        nadi.embedded(store=store, rest_port=0) as two,
        nadi.StreamManager(one.controller_uri) as manager,
    ):
        manager.create_scope("home")
        manager.create_stream("home", "meters", 4)
        for server in (one, two, one):
            response = httpx.post(
                server.rest_uri + path,
                content=lines,
                params={"key-field": "meter"},
                headers={"content-type": "application/x-ndjson"} | keyed,
                timeout=60,
            )
            assert (response.status_code, response.json()) == (200, {"written": 40}), response.text
            assert httpx.post(server.rest_uri + path, content=b"plain", timeout=60).status_code == 200
        tail = manager.stream_info("home", "meters").tail
        found = sorted(event.data for event in manager.read_events("home", "meters", end=tail))
        assert found == sorted([*lines.splitlines(), *[b"plain"] * 3])
