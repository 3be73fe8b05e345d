"""KEDA's RPCs: what scales with a stream, by how much, and when it has something to do."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator
from contextlib import aclosing

from nadi.controller.grpc.outcomes import Rpcs
from nadi.controller.keda.trigger import metadata_of, trigger
from nadi.errors import InvalidArgumentError
from nadi.wire.rpc import externalscaler_pb2 as pb

_MOST = (1 << 63) - 1


class ScalerService(Rpcs):
    async def is_active(self, request: pb.ScaledObjectRef) -> pb.IsActiveResponse:
        return pb.IsActiveResponse(result=await self._controller.demand.is_active(trigger(metadata_of(request))))

    async def stream_is_active(self, request: pb.ScaledObjectRef) -> AsyncGenerator[pb.IsActiveResponse, None]:
        async with aclosing(self._controller.demand.watch(trigger(metadata_of(request)))) as changes:
            async for active in changes:
                yield pb.IsActiveResponse(result=active)

    async def get_metric_spec(self, request: pb.ScaledObjectRef) -> pb.GetMetricSpecResponse:
        asked = trigger(metadata_of(request))
        spec = pb.MetricSpec(
            metricName=asked.metric_name, targetSize=_whole(asked.target), targetSizeFloat=asked.target
        )
        return pb.GetMetricSpecResponse(metricSpecs=[spec])

    async def get_metrics(self, request: pb.GetMetricsRequest) -> pb.GetMetricsResponse:
        asked = trigger(metadata_of(request))
        if request.metricName != asked.metric_name:
            raise InvalidArgumentError(
                f"this trigger has no metric {request.metricName[:40]!r}: ask for {asked.metric_name}"
            )
        value = await self._controller.demand.value(asked)
        found = pb.MetricValue(metricName=asked.metric_name, metricValue=_whole(value), metricValueFloat=value)
        return pb.GetMetricsResponse(metricValues=[found])


def _whole(number: float) -> int:
    """Rounded up, so that little isn't nothing."""
    return min(math.ceil(number), _MOST)
