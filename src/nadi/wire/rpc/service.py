"""The RPCs of ControllerService, and nadi's own: the services' names, and for each RPC its request and response class.

Server and client build their gRPC handlers and calls from `METHODS` and `OWN_METHODS`; there is no generated stub.

>>> request, response = METHODS["createScope"]
>>> response.DESCRIPTOR.name
'CreateScopeStatus'
>>> path("createScope")
'/io.pravega.controller.stream.api.grpc.v1.ControllerService/createScope'
"""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from nadi.wire.rpc import controller_pb2, reports_pb2

SERVICE, OWN_SERVICE = "io.pravega.controller.stream.api.grpc.v1.ControllerService", "nadi.v1.Reports"

Methods = dict[str, tuple[type[Message], type[Message]]]


def _methods(service: Any) -> Methods:
    return {
        method.name: (GetMessageClass(method.input_type), GetMessageClass(method.output_type))
        for method in service.methods
    }


METHODS = _methods(controller_pb2.DESCRIPTOR.services_by_name["ControllerService"])
OWN_METHODS = _methods(reports_pb2.DESCRIPTOR.services_by_name["Reports"])


def path(rpc: str) -> str:
    """The full name of an RPC on the wire."""
    return f"/{OWN_SERVICE if rpc in OWN_METHODS else SERVICE}/{rpc}"
