"""Each RPC returns a code that clients don't mistake for a server fault, and has a row in the tables."""

from __future__ import annotations

import grpc
import pytest

from nadi.wire.commands import CODES
from nadi.wire.rpc.service import METHODS, path
from tests.compatibility import table
from tests.compatibility.conftest import DIRECT, Server

# Clients report these codes at once; they retry others for a minute, or take them for a server fault.
PLAIN_CODES = {
    grpc.StatusCode.OK,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.UNIMPLEMENTED,
}


@pytest.mark.parametrize("rpc", METHODS)
def test_an_empty_request_is_answered_at_once(server: Server, rpc: str) -> None:
    request, response = METHODS[rpc]
    target = server(DIRECT).controller_uri.removeprefix("tcp://")
    with grpc.insecure_channel(target) as channel:
        call = channel.unary_unary(path(rpc), request.SerializeToString, response.FromString)
        try:
            call(request(), timeout=60)
            code = grpc.StatusCode.OK
        except grpc.RpcError as error:
            code = error.code()
    assert code in PLAIN_CODES


def test_render_has_a_row_for_each_rpc_and_command() -> None:
    rows = [line for line in table.render().splitlines() if line.startswith("| ")]
    names = {cell.strip(" `") for row in rows for cell in row.split("|")[1:3]}
    assert {*METHODS, *(command.__name__ for command in CODES.values())} <= names
