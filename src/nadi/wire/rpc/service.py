"""Tables of the RPCs of ControllerService, nadi and KEDA, with the request and response class of each.

Server and client build their gRPC handlers and calls from these tables instead of generated stubs.

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

from nadi.wire.rpc import controller_pb2, externalscaler_pb2, quotas_pb2, reports_pb2, transactions_pb2

SERVICE = "io.pravega.controller.stream.api.grpc.v1.ControllerService"
REPORTS_SERVICE, TRANSACTIONS_SERVICE = "nadi.v1.Reports", "nadi.v1.Transactions"
QUOTAS_SERVICE = "nadi.v1.Quotas"
SCALER_SERVICE = "externalscaler.ExternalScaler"

Methods = dict[str, tuple[type[Message], type[Message]]]


def _methods(service: Any) -> Methods:
    return {
        method.name: (GetMessageClass(method.input_type), GetMessageClass(method.output_type))
        for method in service.methods
    }


METHODS = _methods(controller_pb2.DESCRIPTOR.services_by_name["ControllerService"])
REPORTS_METHODS = _methods(reports_pb2.DESCRIPTOR.services_by_name["Reports"])
TRANSACTIONS_METHODS = _methods(transactions_pb2.DESCRIPTOR.services_by_name["Transactions"])
QUOTAS_METHODS = _methods(quotas_pb2.DESCRIPTOR.services_by_name["Quotas"])
OWN_METHODS = REPORTS_METHODS | TRANSACTIONS_METHODS | QUOTAS_METHODS
SCALER_METHODS = _methods(externalscaler_pb2.DESCRIPTOR.services_by_name["ExternalScaler"])
WATCHES = frozenset({"StreamIsActive"})  # RPCs with a response stream
LONG_POLLS = frozenset({"findCommit", "awaitTransactions"})  # RPCs whose reply may wait for an event, some seconds
SERVICES = {
    SERVICE: METHODS,
    REPORTS_SERVICE: REPORTS_METHODS,
    TRANSACTIONS_SERVICE: TRANSACTIONS_METHODS,
    QUOTAS_SERVICE: QUOTAS_METHODS,
    SCALER_SERVICE: SCALER_METHODS,
}


def path(rpc: str) -> str:
    """Return the full name of an RPC on the wire."""
    return f"/{next(name for name, methods in SERVICES.items() if rpc in methods)}/{rpc}"
