"""Queries over REST, on a real server that may open only some stores."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

import nadi
from nadi.search import backfill_parts, indexes, run, standing_queries
from tests.access.support import PASSWORD, guarded, user
from tests.cli.test_streams import Shell
from tests.search.support import event
from tests.web.support import error_of

pytest.importorskip("tantivy", reason="search needs tantivy")


def test_queries_over_rest(tmp_path: Path) -> None:
    environment = {"NADI_REST_SEARCH": f"{tmp_path}/allowed s3://bucket", "NADI_SEARCH_CACHE": str(tmp_path / "cache")}
    with (
        nadi.embedded(tmp_path / "data", rest_port=0, environment=environment) as server,
        nadi.StreamManager(server.controller_uri) as manager,
        httpx.Client(base_url=server.rest_uri, timeout=60) as rest,
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
        assert first["hits"][0]["matches"] == [[14, 20]]
        rest_of = rest.get(path, params={"query": "group3 level:l1", "limit": 3, "after": first["next"]}).json()
        assert (len(rest_of["hits"]), rest_of["next"]) == (2, None)
        best = rest.get(path, params={"query": "group3", "order": "best"}).json()
        assert best["hits"][0]["score"] > 0
        counted = rest.get(f"{path}/counts", params={"by": "level"}).json()
        assert counted == [{"value": "l0", "events": 25}, {"value": "l1", "events": 25}]
        by_time = rest.get(f"{path}/counts", params={"by": "_arrival_time", "interval": 3600}).json()
        assert sum(one["events"] for one in by_time) == 50
        cut_off = rest.get(path, params={"query": "group3", "eventBytes": 10}).json()["hits"][0]
        assert (cut_off["event"], cut_off["sizeBytes"]) == ('{"message"', len(event(43, level="l1")))
        by_key = rest.get(path, params=[("key", "k"), ("key", "l")]).json()
        assert by_key["count"] == rest.get(path).json()["count"]  # only one segment's events
        error_of(rest.get(path, params={"eventBytes": "0"}), 400)
        for wrong, where in (("wait_for", path), ("by", path), ("order", f"{path}/counts")):
            fitting = {"by": "level"} if where != path else {}
            assert repr(wrong) in error_of(rest.get(where, params={wrong: "tail"} | fitting), 400)
        for name, value in (("query", "("), ("limit", "x"), ("limit", "0"), ("order", "worst"), ("after", "x")):
            error_of(rest.get(path, params={name: value}), 400)
        error_of(rest.get(path, params={"since": "nobookmark"}), 404)
        error_of(rest.get(f"{path}/counts"), 400)
        error_of(rest.get(f"{path}/counts", params={"by": "level", "interval": "x"}), 400)
        assert "NADI_REST_SEARCH" in error_of(rest.get("/v1/data/home/streams/others/search"), 403)
        assert "home/none" in error_of(rest.get("/v1/data/home/streams/none/search"), 404)
        found.delete("logs")
        error_of(rest.get(path), 404)
        found.create("logs", "message:text", where=str(tmp_path / "allowed"))
        assert rest.get(path).json() == {"count": 0, "next": None, "hits": []}
        shell = Shell(server.controller_uri)
        asked = shell.run("stream", "delete", "home", "logs", stdin=b"y\n").output
        assert "home/logs" in asked
        assert [one.stream for one in found.list()] == ["others"]


def test_rest_lists_indexes_and_standing_queries(tmp_path: Path) -> None:
    with (
        guarded(tmp_path, rest_port=0) as server,
        nadi.StreamManager(server.controller_uri, credentials=user("root")) as manager,
        httpx.Client(base_url=server.rest_uri, timeout=60, auth=("root", PASSWORD)) as root,
    ):
        reader, stranger = ((name, PASSWORD) for name in ("reader", "stranger"))
        manager.create_scope("home")
        data = "/v1/data/home"
        assert root.get(f"{data}/searched").json() == []  # before the table exists
        assert "home/logs" in error_of(root.get(f"{data}/streams/logs/search/index"), 404)
        for stream in ("logs", "others", "hits"):
            manager.create_stream("home", stream)
        with manager.create_writer("home", "logs") as writer:
            for number in range(20):
                writer.write_event(event(number))
            writer.write_event(b"{")
        indexes(manager, "home").create("logs", "message:text,ms:long", where=str(tmp_path / "shards"))
        queries = standing_queries(manager, "home")
        queries.create("others", "hits", fields="message:text", format="json")
        queries.add("others", {f"q{number:03}": f"word{number}" for number in range(250)})
        queries.stop("others")
        kept = [("logs", True, False), ("others", False, True)]
        for credentials in (("root", PASSWORD), reader):
            found = root.get(f"{data}/searched", auth=credentials).json()
            assert [(one["streamName"], one["hasIndex"], one["hasStandingQueries"]) for one in found] == kept
        before = root.get(f"{data}/streams/logs/search/index", auth=reader).json()
        fields = [("message", "text"), ("ms", "long")]
        assert before["fields"] == [{"name": name, "kind": kind, "events": 0} for name, kind in fields]
        assert (before["events"], before["indexers"], before["isStopped"]) == (0, 0, False)
        assert before["lagBytes"] > 20 * len(event(0))
        for part in backfill_parts(manager, "home", "logs"):
            assert root.get(f"{data}/streams/logs/search/index").json()["backfillBytes"] == part.size_bytes
            part.index()
        after = root.get(f"{data}/streams/logs/search/index").json()
        assert (after["events"], after["invalid"], after["lagBytes"], after["backfillBytes"]) == (20, 1, 0, 0)
        assert [one["events"] for one in after["fields"]] == [20, 20]
        standing = root.get(f"{data}/streams/others/search/standing", auth=reader).json()
        assert (standing["hits"], standing["queries"], standing["isStopped"]) == ("home/hits", 250, True)
        assert [one["name"] for one in standing["first"]] == [f"q{number:03}" for number in range(200)]
        assert standing["first"][7]["query"] == "word7"
        error_of(root.get(f"{data}/streams/logs/search/standing"), 404)
        for path in ("searched", "streams/logs/search", "streams/logs/search/index", "streams/others/search/standing"):
            error_of(root.get(f"{data}/{path}", auth=stranger), 403)
        error_of(root.get("/v1/data/none/searched"), 404)
