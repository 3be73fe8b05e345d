"""Record of a server: the RPCs and wire commands of each client.

`recording_main` fills it, the fixture `server` collects it, `table` stores it in served.json and renders it.
"""

from __future__ import annotations

import msgspec
from google.protobuf.message import Message

OK = "OK"  # outcome of an RPC if the reply has no status


class Served(msgspec.Struct):
    """Outcomes of one client, without counts, which differ from run to run."""

    rpcs: dict[str, set[str]] = msgspec.field(default_factory=dict)  # outcomes by RPC
    received: set[str] = msgspec.field(default_factory=set)  # names of wire commands
    sent: set[str] = msgspec.field(default_factory=set)

    def add_rpc(self, rpc: str, outcome: str) -> None:
        self.rpcs.setdefault(rpc, set()).add(outcome)

    def add(self, other: Served) -> None:
        for rpc, outcomes in other.rpcs.items():
            self.rpcs.setdefault(rpc, set()).update(outcomes)
        self.received |= other.received
        self.sent |= other.sent


Record = dict[str, Served]  # by client


def outcome_of(reply: Message) -> str:
    """Return the name of the status in a reply; OK for a reply without one."""
    for field in reply.DESCRIPTOR.fields:
        if field.name in ("status", "state", "result") and field.enum_type is not None:
            number = getattr(reply, field.name)
            value = field.enum_type.values_by_number.get(number)
            return value.name if value is not None else str(number)
    return OK


def encode(record: Record) -> bytes:
    """Encode deterministically as JSON."""
    return msgspec.json.format(msgspec.json.encode(record, order="deterministic"), indent=1) + b"\n"


def decode(text: bytes) -> Record:
    return msgspec.json.decode(text, type=Record)
