"""A process with the fake store and controller, for the blocking client: prints its port."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import grpc

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from nadi.wire.rpc.service import METHODS, SERVICE
from tests.client.fake_server import FakeController, FakeStore


async def main() -> None:
    store = FakeStore()
    await store.start()
    controller = FakeController(store)
    for segments in (1, 4):
        controller.add_stream("sc", f"st{segments}", segments)

    def handler(rpc: str) -> Any:
        async def handle(request: Any, context: Any) -> Any:
            try:
                return await controller._send(rpc, request, 1.0)
            except LookupError as error:
                await context.abort(grpc.StatusCode.NOT_FOUND, str(error))

        request, reply = METHODS[rpc]
        return grpc.unary_unary_rpc_method_handler(handle, request.FromString, reply.SerializeToString)

    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(SERVICE, {rpc: handler(rpc) for rpc in METHODS}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)  # until the parent ends


if __name__ == "__main__":
    asyncio.run(main())
