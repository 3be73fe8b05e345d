"""The controller's gRPC messages.

`controller.proto` is the source; `controller_pb2.py` and `controller_pb2.pyi` are generated from it:

    python -m grpc_tools.protoc -I src --python_out=src --pyi_out=src nadi/wire/rpc/controller.proto

and a test checks that they still agree with it. Use grpcio-tools 1.73 (protobuf 6.31): generated code
refuses a runtime older than its own, and this one runs on every protobuf that pyproject.toml allows.
`service` lists the RPCs.
"""
