"""Each RPC of the protocol is answered in a way that no client mistakes for a fault of the server; and
docs/compatibility.md says what the tests recorded."""

from __future__ import annotations

import grpc
import pytest

from nadi.wire.rpc.service import METHODS, path
from tests.compatibility import table
from tests.compatibility.conftest import DIRECT, Server

# Of these codes clients say at once what was wrong; others they repeat for a minute, or take for a fault.
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


def test_the_tables_are_those_of_the_record() -> None:
    document = table.DOCUMENT.read_text()
    assert document.count(table.BEGIN) == document.count(table.END) == 1
    assert table.rewritten(document, table.load()) == document, "run `python -m tests.compatibility.table`"
