"""The controller's gRPC messages.

The .proto files are the sources: `controller.proto` has Pravega's messages, `reports.proto` nadi's,
`externalscaler.proto` KEDA's, `logs.proto` OpenTelemetry's log records. The generated code is committed, and a test
checks that it is current. Regenerate it with grpcio-tools 1.73 (protobuf 6.31): generated code refuses an older
runtime, and this version runs on every protobuf that pyproject.toml allows.

    python -m grpc_tools.protoc -I src --python_out=src --pyi_out=src nadi/wire/rpc/controller.proto

`service` lists the RPCs.
"""
