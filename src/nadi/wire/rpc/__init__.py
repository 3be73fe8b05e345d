"""The controller's gRPC messages.

`controller.proto` is the source; `controller_pb2.py` and `controller_pb2.pyi` are generated from it:

    python -m grpc_tools.protoc -I src --python_out=src --pyi_out=src nadi/wire/rpc/controller.proto

and a test checks that they still agree with it. `service` lists the RPCs.
"""
