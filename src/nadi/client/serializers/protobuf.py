"""Protobuf messages, with the descriptors of their type kept in the store.

Protobuf reads by field numbers: fields that the reader doesn't know are kept as unknown ones, those the writer
didn't know have their defaults. `protobuf_fields` says when that loses nothing. The stored definition is the
message's full name, a line feed, and the FileDescriptorSet of its file and all that it imports, so that
any Protobuf tool can decode a stream with what its store keeps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, EncodeError, Message

from nadi.client.serializers.protobuf_fields import differences
from nadi.errors import InvalidArgumentError, SerializationError

M = TypeVar("M", bound=Message)


class Protobuf(Generic[M]):
    """Values of one generated message class."""

    schema_format = "protobuf"

    def __init__(self, message_class: type[M]) -> None:
        if not (isinstance(message_class, type) and issubclass(message_class, Message)):
            raise InvalidArgumentError(f"{message_class!r} is no class that protoc generated: give one of its messages")
        self.message_class = message_class
        descriptor = message_class.DESCRIPTOR
        files: dict[str, bytes] = {}
        _collect(descriptor.file, files)
        found = descriptor_pb2.FileDescriptorSet()
        for data in files.values():
            found.file.add().ParseFromString(data)
        self.definition: bytes = descriptor.full_name.encode() + b"\n" + found.SerializeToString(deterministic=True)

    def serialize(self, value: M) -> bytes:
        if not isinstance(value, self.message_class):
            raise SerializationError(
                f"a value is a {self.message_class.DESCRIPTOR.full_name} here, not {type(value).__qualname__}"
            )
        try:
            data: bytes = value.SerializeToString()
        except EncodeError as error:
            raise SerializationError(f"the message can't be written: {error}") from error
        return data

    def deserialize(self, data: bytes) -> M:
        try:
            value: M = self.message_class.FromString(data)
        except DecodeError as error:
            name = self.message_class.DESCRIPTOR.full_name
            raise SerializationError(f"the event is no {name}: {error}") from error
        if not value.IsInitialized():
            missing = ", ".join(value.FindInitializationErrors())
            raise SerializationError(f"the event has no value for the required {missing}")
        return value

    def decoder(self, written: bytes) -> Callable[[bytes], M]:
        return self.deserialize  # the numbers of the fields say all

    def incompatibilities(self, reader: bytes, writer: bytes) -> list[str]:
        return differences(_message_type(reader), _message_type(writer))


def _collect(file: FileDescriptor, files: dict[str, bytes]) -> None:
    """Add the file after all that it imports."""
    if file.name not in files:
        for imported in file.dependencies:
            _collect(imported, files)
        files[file.name] = file.serialized_pb


def _message_type(definition: bytes) -> Any:
    """The descriptor that a definition holds, in a pool of its own: two versions have the same names."""
    name, _, data = definition.partition(b"\n")
    pool = DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(data).file:
        pool.Add(file)
    return pool.FindMessageTypeByName(name.decode())
