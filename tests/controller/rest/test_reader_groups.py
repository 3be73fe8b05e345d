"""Reader groups over REST, made over gRPC as the official Java client makes them."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from nadi.config import ServerConfig
from nadi.standalone.server import Server
from nadi.wire.rpc import controller_pb2 as pb
from tests.controller.rest.test_resources import error_of
from tests.controller.rpc import calls
from tests.controller.test_reader_groups import CREATED, group_config, prepare, streams_in

pytestmark = pytest.mark.uvloop


async def test_reader_groups(tmp_path: Path) -> None:
    server = Server(ServerConfig(data=tmp_path, store_port=0, port=0, rest_port=0))
    async with (
        server,
        calls(server.controller_uri.removeprefix("tcp://")) as call,
        httpx.AsyncClient(base_url=f"{server.rest_uri}/v1/scopes", timeout=60) as rest,
    ):
        await prepare(call, "meters", "events")
        assert (await rest.get("/home/readergroups")).json() == {"readerGroups": []}
        cuts = [pb.StreamCut(streamInfo=pb.StreamInfo(scope="home", stream=stream)) for stream in ("meters", "events")]
        for group in ("readers", "others"):
            made = await call("createReaderGroup", group_config(group, startingStreamCuts=cuts))
            assert made.status == CREATED.SUCCESS
        listed = (await rest.get("/home/readergroups")).json()
        assert sorted(g["readerGroupName"] for g in listed["readerGroups"]) == ["others", "readers"]
        assert set(listed) == {"readerGroups"}
        error_of(await rest.get("/none/readergroups"), 404)
        shown = await rest.get("/home/readergroups/readers")
        assert (shown.status_code, shown.json()) == (
            200,
            {
                "scopeName": "home",
                "readerGroupName": "readers",
                "streamList": ["events", "meters"],
                "onlineReaderIds": [],
            },
        )
        for path in ("/home/readergroups/none", "/none/readergroups/readers"):
            error_of(await rest.get(path), 404)
            error_of(await rest.delete(path), 404)
        assert (await rest.delete("/home/readergroups/readers")).status_code == 204
        error_of(await rest.delete("/home/readergroups/readers"), 404)
        assert "_RGreaders" not in await streams_in(call)
        assert "_RGothers" in await streams_in(call)
