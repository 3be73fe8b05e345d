"""Tables that clients have defined on a stream, and how far they have written changes into it: they go with it.

Clients keep both in a table of their scope, and anybody who may write that may write nonsense: what can't be
read is of no stream.
"""

from __future__ import annotations

import msgspec

from nadi.controller.engine.workflows import Workflows
from nadi.controller.state.metadata import StreamName
from nadi.errors import SegmentNotFoundError
from nadi.limits import TABLE_PAGE_MAX_ENTRIES
from nadi.model.place import OfStream
from nadi.naming import STREAM_TABLES_TABLE, TABLE_SUFFIX, segment_name
from nadi.wire import commands as wire
from nadi.wire.fields import TableKey


async def drop(flow: Workflows, name: StreamName) -> None:
    """Forget what goes with a stream, however much of it is forgotten already."""
    if name.stream.startswith("_"):
        return
    table, segments = segment_name(name.scope, STREAM_TABLES_TABLE + TABLE_SUFFIX, 0), flow.segments
    token = b""
    while True:
        command = wire.ReadTableEntries(segments.request_id(), table, "", TABLE_PAGE_MAX_ENTRIES, (token, b"", b""))
        try:
            page = await segments.ask(command, wire.TableEntriesRead)
        except SegmentNotFoundError:
            return  # none was ever defined
        if not page.entries:
            return
        token = page.continuation_token
        for entry in page.entries:
            if _stream(bytes(entry.value)) == name.stream:
                removal = wire.RemoveTableKeys(
                    segments.request_id(), table, "", (TableKey(bytes(entry.key), entry.version),)
                )
                # changed meanwhile: whoever did looks for the stream now
                await segments.ask(removal, wire.TableKeysRemoved, wire.TableKeyDoesNotExist, wire.TableKeyBadVersion)


def _stream(value: bytes) -> str | None:
    try:
        return msgspec.json.decode(value, type=OfStream).stream
    except msgspec.MsgspecError:
        return None
