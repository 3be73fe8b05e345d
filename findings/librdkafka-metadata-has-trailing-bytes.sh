#!/bin/bash
# librdkafka: a Metadata request for all topics, of version 12, has three bytes behind its end (01 00 00): the fields and
# tags that Kafka defines for that version end before, as kio finds, whose readers are made from Kafka's definitions. A
# request for certain topics has none. A server that checks that requests end with their last field, as against
# garbage, cuts off `list_topics` of every client of librdkafka; Kafka's ignores the bytes.
# Expected: the request ends with its last field. Seen with confluent-kafka 2.16.1 (librdkafka 2.16.1) and kio 0.6.5.
# For users of nadi: none; the Kafka port ignores bytes behind a request (kafka/messages.py), and tests/kafka lists topics.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check confluent-kafka==2.16.1 kio==0.6.5
"$folder/venv/bin/python" - <<'PYTHON'
import io
import socket
import sys
import threading
from datetime import timedelta

from confluent_kafka.admin import AdminClient
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i32Timedelta

API_VERSIONS, METADATA = 18, 3
left_over = []


def exactly(peer: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = peer.recv(size - len(data))
        if not more:
            raise EOFError
        data += more
    return data


def answer(peer: socket.socket, frame: bytes) -> None:
    """Say that only Metadata 12 is supported, besides ApiVersions."""
    kind = load_response_schema(API_VERSIONS, 3)
    ranges = [(API_VERSIONS, 0, 3), (METADATA, 12, 12)]
    item = kind.__annotations__["api_keys"].__args__[0]
    keys = tuple(item(api_key=key, min_version=low, max_version=high) for key, low, high in ranges)
    with io.BytesIO() as buffer:
        buffer.write(frame[4:8])
        entity_writer(kind)(buffer, kind(error_code=ErrorCode.none, api_keys=keys, throttle_time=ZERO))
        body = buffer.getvalue()
    peer.sendall(len(body).to_bytes(4, "big") + body)


def serve(peer: socket.socket) -> None:
    while True:
        frame = exactly(peer, int.from_bytes(exactly(peer, 4), "big"))
        key, version = int.from_bytes(frame[:2], "big"), int.from_bytes(frame[2:4], "big")
        if key == API_VERSIONS:
            answer(peer, frame)
            continue
        kind = load_request_schema(key, version)
        _, head = entity_reader(kind.__header_schema__)(frame, 0)
        request, size = entity_reader(kind)(frame, head)
        left_over.append((key, version, len(frame), frame[head + size :], request.topics))


def accept(listener: socket.socket) -> None:
    while True:
        try:
            peer, _ = listener.accept()
            threading.Thread(target=guarded, args=(peer,), daemon=True).start()
        except OSError:
            return


def guarded(peer: socket.socket) -> None:
    try:
        serve(peer)
    except (EOFError, OSError):
        pass


ZERO = i32Timedelta.parse(timedelta(0))
listener = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=accept, args=(listener,), daemon=True).start()
client = AdminClient({"bootstrap.servers": f"127.0.0.1:{listener.getsockname()[1]}", "log_level": 0})
try:
    client.list_topics(timeout=5)
except Exception:
    pass  # the server never answers Metadata
for key, version, size, rest, topics in left_over:
    print(f"API {key}, version {version}, {size} bytes, topics {topics}: {len(rest)} bytes are left: {rest.hex(' ')}")
sys.exit(0 if any(rest == b"\x01\0\0" and topics is None for *_, rest, topics in left_over) else 1)
PYTHON
