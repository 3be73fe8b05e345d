"""Queries over REST, on a real server that may open some stores and no others."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

import nadi
from nadi.search import indexes, run
from tests.cli.test_streams import Shell
from tests.search.support import event
from tests.web.support import error_of

pytest.importorskip("tantivy", reason="search needs tantivy")


def test_queries_over_rest(tmp_path: Path) -> None:
    environment = {"NADI_REST_SEARCH": f"{tmp_path}/allowed s3://bucket", "NADI_SEARCH_CACHE": str(tmp_path / "cache")}
    with (
        nadi.embedded(tmp_path / "data", rest_port=0, environment=environment) as server,
        nadi.StreamManager(server.controller_uri) as manager,
        httpx.Client(base_url=server.rest_uri, timeout=30) as rest,
    ):
        manager.create_scope("home")
        for stream in ("logs", "others", "none"):
            manager.create_stream("home", stream)
            with manager.create_writer("home", stream) as writer:
                for number in range(50):
                    writer.write_event(event(number, level=f"l{number % 2}"))
            manager.seal_stream("home", stream)
        found = indexes(manager, "home")
        found.create("logs", "message:text,level:keyword,ms:long", where=str(tmp_path / "allowed" / "x"))
        found.create("others", "message:text", where=str(tmp_path / "allowed" / ".." / "elsewhere"))
        run("home", "logs", server.controller_uri)
        path = "/v1/data/home/streams/logs/search"
        first = rest.get(path, params={"query": "group3 level:l1", "limit": 3, "waitFor": "tail"}).json()
        assert (first["count"], len(first["hits"])) == (5, 3)
        assert '"message":"request 43 of group3"' in first["hits"][0]["event"]
        assert first["hits"][0]["found"] == [[14, 20]]
        rest_of = rest.get(path, params={"query": "group3 level:l1", "limit": 3, "after": first["next"]}).json()
        assert (len(rest_of["hits"]), rest_of["next"]) == (2, None)
        best = rest.get(path, params={"query": "group3", "order": "best"}).json()
        assert best["hits"][0]["score"] > 0
        counted = rest.get(f"{path}/counts", params={"by": "level"}).json()
        assert counted == [{"value": "l0", "events": 25}, {"value": "l1", "events": 25}]
        by_time = rest.get(f"{path}/counts", params={"by": "_came", "interval": 3600}).json()
        assert sum(one["events"] for one in by_time) == 50
        for name, value in (("query", "("), ("limit", "x"), ("limit", "0"), ("order", "worst"), ("after", "x")):
            error_of(rest.get(path, params={name: value}), 400)
        error_of(rest.get(path, params={"since": "nobookmark"}), 404)
        error_of(rest.get(f"{path}/counts"), 400)
        error_of(rest.get(f"{path}/counts", params={"by": "level", "interval": "x"}), 400)
        assert "NADI_REST_SEARCH" in error_of(rest.get("/v1/data/home/streams/others/search"), 403)
        assert "has no search index" in error_of(rest.get("/v1/data/home/streams/none/search"), 404)
        found.drop("logs")
        error_of(rest.get(path), 404)
        found.create("logs", "message:text", where=str(tmp_path / "allowed"))
        assert rest.get(path).json() == {"count": 0, "next": None, "hits": []}
        shell = Shell(server.controller_uri)
        asked = shell.run("stream", "delete", "home", "logs", stdin=b"y\n").output
        assert "Delete stream home/logs and all its events, and its search index?" in asked
        assert [one.stream for one in found.list()] == ["others"]
