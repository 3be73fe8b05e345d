"""Serializers: turn values into events and back; passed to writers and readers as an argument.

`Bytes`, `Text`, `Json` and `Msgpack` are schemaless. `Struct`, `Avro`, `Protobuf` and `Arrow` have schemas, which the
store keeps and checks for compatibility. Any object with `serialize` and `deserialize` is a serializer.
docs/serializers.md is the guide.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from nadi.client.serializers.plain import Bytes, Json, Msgpack, SchemaSerializer, Serializer, Text
from nadi.client.serializers.registry import Compatibility, SchemaVersion

if TYPE_CHECKING:
    from nadi.client.serializers.arrow import Arrow
    from nadi.client.serializers.avro import Avro
    from nadi.client.serializers.protobuf import Protobuf
    from nadi.client.serializers.structs import Struct

__all__ = [
    "Arrow",
    "Avro",
    "Bytes",
    "Compatibility",
    "Json",
    "Msgpack",
    "Protobuf",
    "SchemaSerializer",
    "SchemaVersion",
    "Serializer",
    "Struct",
    "Text",
]

# imported on first access: each loads a library that most programs don't use
_HOMES = {"Arrow": "arrow", "Avro": "avro", "Protobuf": "protobuf", "Struct": "structs"}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
