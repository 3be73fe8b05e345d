"""The messages of transactions.proto, by name."""

from google.protobuf.message_factory import GetMessageClass

from nadi.wire.rpc.service import FILES

DESCRIPTOR = FILES["transactions"]
globals().update({name: GetMessageClass(kind) for name, kind in DESCRIPTOR.message_types_by_name.items()})
