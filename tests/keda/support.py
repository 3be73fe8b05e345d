"""KEDA's client side: its calls, built from the service's messages alone."""

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
        scaler_metadata = {"scalerAddress": "nadi:9090", **metadata}  # KEDA passes this on as well
        return pb.ScaledObjectRef(name="bills", namespace="home", scalerMetadata=scaler_metadata)

    async def ask(self, rpc: str, request: Any, reply: Any) -> Any:
        call = self.channel.unary_unary(
            SERVICE + rpc, request_serializer=type(request).SerializeToString, response_deserializer=reply.FromString
        )
        return await call(request, timeout=60)

    async def spec(self, **metadata: str) -> Any:
        (spec,) = (await self.ask("GetMetricSpec", self.ref(metadata), pb.GetMetricSpecResponse)).metricSpecs
        return spec

    async def metric(self, **metadata: str) -> Any:
        """Get the metric like KEDA does: by the name in the specification."""
        name = (await self.spec(**metadata)).metricName
        request = pb.GetMetricsRequest(scaledObjectRef=self.ref(metadata), metricName=name)
        (metric,) = (await self.ask("GetMetrics", request, pb.GetMetricsResponse)).metricValues
        assert metric.metricName == name
        return metric

    async def value(self, **metadata: str) -> float:
        return float((await self.metric(**metadata)).metricValueFloat)

    async def is_active(self, **metadata: str) -> bool:
        return bool((await self.ask("IsActive", self.ref(metadata), pb.IsActiveResponse)).result)

    def watch(self, **metadata: str) -> Any:
        """Call StreamIsActive; iterate over the result."""
        call = self.channel.unary_stream(
            SERVICE + "StreamIsActive",
            request_serializer=pb.ScaledObjectRef.SerializeToString,
            response_deserializer=pb.IsActiveResponse.FromString,
        )
        return call(self.ref(metadata))


@asynccontextmanager
async def keda(uri: str, authority: Path | None = None) -> AsyncIterator[Keda]:
    """Connect like KEDA: with TLS if an authority is given."""
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
    """Return the code and the message of a call that must fail."""
    try:
        reply = await awaitable
    except grpc.aio.AioRpcError as error:
        return error.code().name, error.details() or ""
    raise AssertionError(f"the call succeeded: {reply}")


async def until(holds: Callable[[], Awaitable[bool]], within_s: float = 60) -> None:
    async with asyncio.timeout(within_s):
        is_met = await holds()
        while not is_met:
            await asyncio.sleep(0.05)
            is_met = await holds()
