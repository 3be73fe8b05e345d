"""Requests of Kafka's protocol, one at a time, for what no client sends."""

from __future__ import annotations

import io
import socket
from datetime import timedelta
from typing import Any, Self

from kio.index import load_payload_module, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType


def requests(key: int, version: int) -> Any:
    """Return kio's module of an API's requests."""
    return load_payload_module(key, version, EntityType.request)


class Connection:
    """A connection to a door."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=30)
        self._number = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, frame: bytes) -> None:
        self.socket.sendall(len(frame).to_bytes(4, "big") + frame)

    def receive(self) -> bytes:
        """Return the next response; empty if the door has closed the connection."""
        head = self._exactly(4)
        return self._exactly(int.from_bytes(head, "big")) if head else b""

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.socket.recv(size - len(data))
            if not more:
                return b""
            data += more
        return data

    def begin(self, request: Any) -> None:
        """Send one of kio's requests."""
        kind = type(request)
        self._number += 1
        header = kind.__header_schema__
        with io.BytesIO() as buffer:
            named = {"client_id": "test"} if "client_id" in header.__dataclass_fields__ else {}
            entity_writer(header)(
                buffer,
                header(
                    request_api_key=kind.__api_key__,
                    request_api_version=kind.__version__,
                    correlation_id=self._number,
                    **named,
                ),
            )
            entity_writer(kind)(buffer, request)
            self.send(buffer.getvalue())

    def ask(self, request: Any) -> Any:
        """Send one of kio's requests; return kio's response."""
        self.begin(request)
        kind, reply = type(request), self.receive()
        response = load_response_schema(kind.__api_key__, kind.__version__)
        head, size = entity_reader(response.__header_schema__)(reply, 0)
        assert head.correlation_id == self._number
        return entity_reader(response)(reply, size)[0]

    def new_producer(self) -> int:
        request = requests(22, 4).InitProducerIdRequest(
            transactional_id=None, transaction_timeout=timedelta(seconds=60), producer_id=-1, producer_epoch=-1
        )
        return int(self.ask(request).producer_id)

    def metadata(self, topic: str) -> Any:
        kinds = requests(3, 12)
        asked = (kinds.MetadataRequestTopic(topic_id=None, name=topic),)
        options = {"allow_auto_topic_creation": True, "include_topic_authorized_operations": False}
        return self.ask(kinds.MetadataRequest(topics=asked, **options))

    def produce(self, topic: str, partition: int, records: bytes) -> tuple[ErrorCode, int]:
        """Return the error code and the first record's offset."""
        kinds = requests(0, 9)
        data = kinds.PartitionProduceData(index=partition, records=records)
        topic_data = (kinds.TopicProduceData(name=topic, partition_data=(data,)),)
        request = kinds.ProduceRequest(
            transactional_id=None, acks=-1, timeout=timedelta(seconds=30), topic_data=topic_data
        )
        answer = self.ask(request).responses[0].partition_responses[0]
        return answer.error_code, answer.base_offset
