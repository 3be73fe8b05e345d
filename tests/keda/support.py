"""KEDA's side of the service: the calls that it makes, from the messages' description alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from nadi.wire.rpc import externalscaler_pb2 as pb

SERVICE = "/externalscaler.ExternalScaler/"
METERS = {"scope": "home", "stream": "meters"}


@dataclass(frozen=True, slots=True)
class Keda:
    channel: grpc.aio.Channel

    def ref(self, metadata: Mapping[str, str]) -> Any:
        told = {"scalerAddress": "nadi:9090", **metadata}  # KEDA passes this on as well
        return pb.ScaledObjectRef(name="bills", namespace="home", scalerMetadata=told)

    async def ask(self, rpc: str, request: Any, reply: Any) -> Any:
        call = self.channel.unary_unary(
            SERVICE + rpc, request_serializer=type(request).SerializeToString, response_deserializer=reply.FromString
        )
        return await call(request, timeout=60)

    async def spec(self, **metadata: str) -> Any:
        (found,) = (await self.ask("GetMetricSpec", self.ref(metadata), pb.GetMetricSpecResponse)).metricSpecs
        return found

    async def metric(self, **metadata: str) -> Any:
        """As KEDA does: by the name that the specification has."""
        name = (await self.spec(**metadata)).metricName
        request = pb.GetMetricsRequest(scaledObjectRef=self.ref(metadata), metricName=name)
        (found,) = (await self.ask("GetMetrics", request, pb.GetMetricsResponse)).metricValues
        assert found.metricName == name
        return found

    async def value(self, **metadata: str) -> float:
        return float((await self.metric(**metadata)).metricValueFloat)

    async def is_active(self, **metadata: str) -> bool:
        return bool((await self.ask("IsActive", self.ref(metadata), pb.IsActiveResponse)).result)

    def watch(self, **metadata: str) -> Any:
        """The call of StreamIsActive; iterate over it."""
        call = self.channel.unary_stream(
            SERVICE + "StreamIsActive",
            request_serializer=pb.ScaledObjectRef.SerializeToString,
            response_deserializer=pb.IsActiveResponse.FromString,
        )
        return call(self.ref(metadata))


@asynccontextmanager
async def keda(uri: str, authority: Path | None = None) -> AsyncIterator[Keda]:
    """Connected as KEDA connects: with TLS, if it is given an authority."""
    scheme, _, address = uri.partition("://")
    assert (scheme == "tls") is (authority is not None)
    if authority is None:
        made = grpc.aio.insecure_channel(address)
    else:
        trusted = await asyncio.to_thread(authority.read_bytes)
        made = grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(trusted))
    async with made as channel:
        yield Keda(channel)


async def refused(awaitable: Any) -> tuple[str, str]:
    """The code and the message with which a call ends."""
    try:
        found = await awaitable
    except grpc.aio.AioRpcError as error:
        return error.code().name, error.details() or ""
    raise AssertionError(f"it was answered: {found}")


async def until(holds: Callable[[], Awaitable[bool]], within_s: float = 60) -> None:
    async with asyncio.timeout(within_s):
        held = await holds()
        while not held:
            await asyncio.sleep(0.05)
            held = await holds()
