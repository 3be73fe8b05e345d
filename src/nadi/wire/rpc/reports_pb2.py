"""The messages of reports.proto, by name."""

from google.protobuf.message_factory import GetMessageClass

from nadi.wire.rpc.service import FILES

DESCRIPTOR = FILES["reports"]
globals().update({name: GetMessageClass(kind) for name, kind in DESCRIPTOR.message_types_by_name.items()})
