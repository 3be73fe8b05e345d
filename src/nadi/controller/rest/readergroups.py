"""Reader groups over REST: those that the controller knows.

Which readers are online is written in the group's state stream, in the Java client's own serialisation,
which nadi does not read: `onlineReaderIds` is always empty. How far groups are behind is reported as far as that is
known.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from starlette.responses import Response

from nadi.access.names import Act
from nadi.access.permissions import Permission, reader_group_resource
from nadi.controller.rest.bodies import ReaderGroupName, ReaderGroupProperty, ReaderGroupsList
from nadi.controller.rest.endpoint import SCOPE, STREAM, Call, endpoint, on_reader_group, on_scope, on_stream
from nadi.controller.rest.replies import no_content, reply, stream_list
from nadi.controller.state.metadata import GroupName
from nadi.limits import LAG_REPLACED, REST_LIST_PAGE
from nadi.model.reports import GROUP_LAG, LOAD, STREAM_LAG, GroupLagReport, StreamLagReport

_GROUP = SCOPE + "/readergroups/{readerGroupName}"


@endpoint("GET", SCOPE + "/readergroups", on_scope(Permission.READ), ReaderGroupsList)
async def list_reader_groups(call: Call) -> Response:
    """List a scope's reader groups."""

    def shown(found: Sequence[str]) -> list[ReaderGroupName]:
        return [ReaderGroupName(group) for group in found if call.shows(reader_group_resource(call.scope, group))]

    fetch = partial(call.controller.list_reader_groups, call.scope, count=REST_LIST_PAGE)
    return await stream_list("readerGroups", fetch, shown, call.page)


@endpoint("GET", _GROUP, on_reader_group(Permission.READ), ReaderGroupProperty)
async def show_reader_group(call: Call) -> Response:
    """Show a reader group."""
    name = GroupName(call.scope, call.group)
    config = (await call.controller.reader_group(name)).config
    streams = sorted(stream.rpartition("/")[2] for stream in config.starts)
    return reply(ReaderGroupProperty(*name, streams, []))


@endpoint("GET", _GROUP + "/lag", on_reader_group(Permission.READ), list[GroupLagReport])
async def show_lag(call: Call) -> Response:
    """Show how far a reader group is behind the tail of each of its streams."""
    name = GroupName(call.scope, call.group)
    await call.controller.reader_group(name)
    records, _ = await call.controller.report(name.stream, GROUP_LAG)
    return reply(list(records))


@endpoint("GET", STREAM + "/lag", on_stream(Act.CHANGE), StreamLagReport)
async def show_stream_lag(call: Call) -> Response:
    """Show a stream's segments, what passes into them, and how far the reader groups that read it are behind."""
    controller, stream = call.controller, call.stream
    groups, _ = await controller.report(stream, STREAM_LAG)
    loads, _ = await controller.report(stream, LOAD)
    replaced = await controller.replaced_segments(stream, LAG_REPLACED)
    return reply(StreamLagReport(stream.key, list(loads), replaced, list(groups)))


@endpoint("DELETE", _GROUP, on_scope(Permission.READ_UPDATE), status=204)
async def delete_reader_group(call: Call) -> Response:
    """Delete a reader group and its state."""
    name = GroupName(call.scope, call.group)
    found = await call.controller.reader_group(name)
    await call.controller.delete_reader_group(name, found.group_id)
    return no_content()
