"""The RPCs of ControllerService: the service's name, and for each RPC its request and response class.

Server and client build their gRPC handlers and calls from `METHODS`; there is no generated stub.

>>> request, response = METHODS["createScope"]
>>> response.DESCRIPTOR.name
'CreateScopeStatus'
>>> path("createScope")
'/io.pravega.controller.stream.api.grpc.v1.ControllerService/createScope'
"""

from __future__ import annotations

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from nadi.wire.rpc import controller_pb2

SERVICE = "io.pravega.controller.stream.api.grpc.v1.ControllerService"

METHODS: dict[str, tuple[type[Message], type[Message]]] = {
    method.name: (GetMessageClass(method.input_type), GetMessageClass(method.output_type))
    for method in controller_pb2.DESCRIPTOR.services_by_name["ControllerService"].methods
}


def path(rpc: str) -> str:
    """The full name of an RPC on the wire."""
    return f"/{SERVICE}/{rpc}"
