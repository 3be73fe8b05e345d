"""The RPC of nadi's own clients: what there is to know about a stream."""

from __future__ import annotations

import msgspec

from nadi.controller.grpc.messages import stream_name
from nadi.controller.grpc.outcomes import Rpcs
from nadi.wire.rpc import reports_pb2 as pb


class ReportService(Rpcs):
    async def report(self, request: pb.ReportRequest) -> pb.ReportPage:
        records, token = await self._controller.report(stream_name(request), request.kind, request.token)
        return pb.ReportPage(records=msgspec.json.encode(records), token=token)
