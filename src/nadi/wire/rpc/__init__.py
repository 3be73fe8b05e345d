"""The controller's gRPC messages.

The .proto files are the sources: `controller.proto` has Pravega's messages, `reports.proto` and `transactions.proto`
nadi's own, `externalscaler.proto` KEDA's, `logs.proto` OpenTelemetry's log records. What protoc makes of them is
committed, and a test checks that it still agrees: their descriptors, of which any protobuf that pyproject.toml allows
builds the messages, and types for mypy.

    python -m grpc_tools.protoc -I src --descriptor_set_out=src/nadi/wire/rpc/messages.binpb --pyi_out=src \
        src/nadi/wire/rpc/*.proto

`service` lists the RPCs.
"""
