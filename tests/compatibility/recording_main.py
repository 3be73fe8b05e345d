"""A real nadi server in a separate process that records the requests and responses of each client.

Each client of each test connects by its own *door*: a port for the controller and a port for the segment store. So the
client and test of a connection are known without guessing from addresses or names. The server behind all doors is
unmodified; only its outermost calls (RPC handlers, a connection's commands) are observed, in this process alone.

Run as `python -m tests.compatibility.recording_main FOLDER RECORD`. Each line of standard input is an `Order`, answered
by an `Opened` on standard output. When the input ends, or on SIGTERM, the server stops and writes the record, as JSON,
to the file RECORD.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import grpc
import msgspec
import uvloop

import nadi.standalone.server
from nadi.config import ServerConfig
from nadi.controller.grpc.server import add_controller, rpc_server
from nadi.segmentstore.server.connection import Connection
from nadi.segmentstore.store import SegmentStore
from nadi.standalone.server import Server
from nadi.wire import commands as wire
from nadi.wire.rpc import controller_pb2 as pb
from tests.compatibility import record
from tests.compatibility.record import Record, Served

HOST = "127.0.0.1"
CONTROLLER = "nadi's controller, in the server"  # it accesses the segment store without a connection


class Order(msgspec.Struct):
    """Order to open a door for a client in a test, or to close a test's doors."""

    test: str
    client: str = ""  # empty: close


class Opened(msgspec.Struct):
    controller_uri: str = ""
    store_host: str = ""
    store_port: int = 0


def _recording(connection: Connection, served: Served) -> Connection:
    """Make a connection record the names of the commands that it receives and sends."""
    receive, receive_appends, replies = connection.receive, connection.receive_appends, connection.replies
    send = replies.send

    def noting_receive(command: wire.Command) -> None:
        served.received.add(type(command).__name__)
        receive(command)

    def noting_receive_appends(appends: list[wire.AppendBlockEnd]) -> None:
        served.received.add(wire.AppendBlockEnd.__name__)
        receive_appends(appends)

    def noting_send(command: wire.Command) -> None:
        served.sent.add(type(command).__name__)
        send(command)

    def noting_send_all(commands: list[wire.DataAppended], *, now: bool) -> None:
        for command in commands:
            noting_send(command)

    connection.receive = noting_receive  # type: ignore[method-assign]
    connection.receive_appends = noting_receive_appends  # type: ignore[method-assign]
    replies.send = connection.writers.send = noting_send  # type: ignore[method-assign]
    replies.send_all = noting_send_all  # type: ignore[method-assign]
    return connection


class _RecordingStore(SegmentStore):
    """Segment store that records the controller's commands."""

    served = Served()

    async def exchange(self, command: wire.Command) -> wire.Command:
        self.served.received.add(type(command).__name__)
        reply = await super().exchange(command)
        self.served.sent.add(type(reply).__name__)
        return reply


class _RecordingInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Records each RPC's outcome, and replaces addresses in replies by the door's."""

    def __init__(self, served: Served, store_port: int) -> None:
        self._served = served
        self._store_port = store_port
        self.controller_port = 0

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        inner = await continuation(details)
        rpc = details.method.rsplit("/", 1)[-1]
        if inner is None:
            self._served.add_rpc(rpc, grpc.StatusCode.UNIMPLEMENTED.name)
            return inner

        async def handle(requests: Any, context: Any) -> Any:
            arrived = False

            async def record_arrival() -> AsyncIterator[bytes]:
                nonlocal arrived
                async for request in requests:
                    arrived = True
                    yield request

            try:
                reply = await inner.stream_unary(record_arrival(), context)
            except BaseException:  # a client that disconnects before its request arrives has cancelled it
                self._served.add_rpc(rpc, _code_name(context.code()) if arrived else "CANCELLED")
                raise
            self._served.add_rpc(rpc, record.outcome_of(reply))
            if isinstance(reply, pb.NodeUri):
                reply.port = self._store_port
            elif isinstance(reply, pb.ServerResponse):
                reply.nodeURI[0].port = self.controller_port
            return reply

        return grpc.stream_unary_rpc_method_handler(handle, inner.request_deserializer, inner.response_serializer)


def _code_name(code: Any) -> str:
    """Return the name of an aborted call's code, which grpcio gives as an enum or as its number."""
    if isinstance(code, int):
        code = next((each for each in grpc.StatusCode if each.value[0] == code), None)
    return cast("str", code.name) if code is not None else "CANCELLED"


class _Door:
    def __init__(self, server: Server, served: Served) -> None:
        self._server = server
        self._served = served
        self._connections: list[Connection] = []

    async def open(self) -> Opened:
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(self._connection, HOST, 0)
        store_port = self._listener.sockets[0].getsockname()[1]
        interceptor = _RecordingInterceptor(self._served, store_port)
        self._rpc = rpc_server(interceptors=[interceptor])
        add_controller(self._rpc, self._server.controller)
        interceptor.controller_port = self._rpc.add_insecure_port(f"{HOST}:0")
        await self._rpc.start()
        return Opened(f"tcp://{HOST}:{interceptor.controller_port}", HOST, store_port)

    def _connection(self) -> Connection:
        connection = _recording(self._server.store._connection(), self._served)
        self._connections.append(connection)
        return connection

    async def close(self) -> None:
        self._listener.close()
        await self._rpc.stop(0)
        for connection in self._connections:
            connection.close()


class RecordingServer(Server):
    """Server with recording doors."""

    def __init__(self, folder: Path) -> None:
        super().__init__(ServerConfig(data=folder, host=HOST, store_port=0, port=0))
        self.record: Record = {CONTROLLER: _RecordingStore.served}
        self._doors: dict[str, list[_Door]] = {}  # by test

    async def stop(self) -> None:
        for test in list(self._doors):
            await self.close_doors(test)
        await super().stop()

    async def open_door(self, client: str, test: str) -> Opened:
        door = _Door(self, self.record.setdefault(client, Served()))
        self._doors.setdefault(test, []).append(door)
        return await door.open()

    async def close_doors(self, test: str) -> None:
        for door in self._doors.pop(test, []):
            await door.close()


async def _orders() -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


def _report(opened: Opened) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(opened) + b"\n")
    sys.stdout.buffer.flush()


async def _serve(folder: Path) -> Record:
    orders = await _orders()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, orders.feed_eof)
    server = RecordingServer(folder)
    async with server:
        _report(Opened(server.controller_uri, *server.store_address))
        while line := await orders.readline():
            order = msgspec.json.decode(line, type=Order)
            if order.client:
                _report(await server.open_door(order.client, order.test))
            else:
                await server.close_doors(order.test)
                _report(Opened())
    return server.record


def main() -> None:
    logging.basicConfig(level=logging.WARNING, format="nadi %(levelname)s %(message)s")
    nadi.standalone.server.SegmentStore = _RecordingStore  # type: ignore[attr-defined]
    folder, target = map(Path, sys.argv[1:3])
    target.write_bytes(record.encode(uvloop.run(_serve(folder))))


if __name__ == "__main__":
    main()
