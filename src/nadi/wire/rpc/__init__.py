"""The controller's gRPC messages.

The .proto files are the sources: `controller.proto` has Pravega's messages, `reports.proto` nadi's own,
`externalscaler.proto` KEDA's, `logs.proto` OpenTelemetry's log records. What is generated from them

    python -m grpc_tools.protoc -I src --python_out=src --pyi_out=src nadi/wire/rpc/controller.proto

is committed, and a test checks that it still agrees. Use grpcio-tools 1.73 (protobuf 6.31): generated code
refuses a runtime older than its own, and this one runs on every protobuf that pyproject.toml allows.
`service` lists the RPCs.
"""
