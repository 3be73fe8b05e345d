"""Inputs for the controller's RPCs: messages of every kind with odd values, damaged ones, and noise."""

from __future__ import annotations

import random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from nadi.wire.rpc.service import METHODS, OWN_METHODS, SCALER_METHODS
from tests.fuzz.mutation import damaged, integer, noise

TEXTS = (
    *("home", "meters", "gas", "_MARKmeters", "_RGreaders", "readers", "none", "", "a_b", "a/b", "_system", "x" * 300),
    *("\0", "é", "00", "ff" * 8, "7b0fe3a2-55f1-4b2c-8c80-0e6f6f3b9d11", "home/meters", "tag"),
    *("rate", "lag", "bytes", "5"),
)
KEYS = ("scope", "stream", "metric", "readerGroup", "target", "unit", "activationTarget", "username", "passwordFromEnv")
_REAL = (0.0, 0.25, 0.5, 1.0, -1.0, 1e300, float("nan"), float("inf"))
EVERY = METHODS | OWN_METHODS | SCALER_METHODS
RPCS = list(EVERY)


def _value(chance: random.Random, field: FieldDescriptor) -> Any:
    kinds = FieldDescriptor
    match field.cpp_type:
        case kinds.CPPTYPE_STRING if field.type == kinds.TYPE_BYTES:
            return chance.randbytes(16 if chance.random() < 0.8 else chance.randrange(40))  # mostly as long as ids are
        case kinds.CPPTYPE_STRING:
            return chance.choice(TEXTS[:2] if chance.random() < 0.5 else TEXTS)
        case kinds.CPPTYPE_INT32 | kinds.CPPTYPE_ENUM:
            return chance.randrange(4) if chance.random() < 0.7 else integer(chance, 32)
        case kinds.CPPTYPE_INT64:
            return chance.randrange(4) if chance.random() < 0.6 else integer(chance, 64)
        case kinds.CPPTYPE_BOOL:
            return chance.random() < 0.5
        case kinds.CPPTYPE_DOUBLE | kinds.CPPTYPE_FLOAT:
            return chance.choice(_REAL)
    raise AssertionError(f"no values for {field.full_name}")


def _fill(chance: random.Random, message: Any, depth: int = 0) -> None:
    for field in message.DESCRIPTOR.fields:
        if depth > 4 or chance.random() < 0.1:
            continue
        target = getattr(message, field.name)
        nested = field.message_type
        if field.name == "scalerMetadata" and chance.random() < 0.7:
            target.update(scope="home", stream="meters", metric=chance.choice(TEXTS[-4:-2]))
        if nested is not None and nested.GetOptions().map_entry:
            value_field = nested.fields_by_name["value"]
            for _ in range(chance.randrange(4)):
                key = _value(chance, nested.fields_by_name["key"])
                if field.name == "scalerMetadata":
                    key = chance.choice(KEYS)
                if value_field.message_type is None:
                    target[key] = _value(chance, value_field)
                else:
                    _fill(chance, target[key], depth + 1)
        elif field.is_repeated:
            for _ in range(chance.randrange(3)):
                if nested is None:
                    target.append(_value(chance, field))
                else:
                    _fill(chance, target.add(), depth + 1)
        elif nested is not None:
            target.SetInParent()
            _fill(chance, target, depth + 1)
        else:
            setattr(message, field.name, _value(chance, field))


def rpc_input(chance: random.Random) -> tuple[str, bytes]:
    """An RPC's name, and what is sent to it as its request."""
    rpc = chance.choice(RPCS)
    kind = chance.random()
    if kind < 0.05:
        return rpc, noise(chance)
    message: Message = EVERY[rpc][0]()
    _fill(chance, message)
    whole = message.SerializeToString()
    return rpc, whole if kind < 0.6 else damaged(chance, whole)
