"""Reader groups over REST: those that the controller knows.

Which readers are online is written in the group's state stream, in the Java client's own serialisation,
which nadi does not read: `onlineReaderIds` is always empty.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from starlette.responses import Response

from nadi.access.permissions import reader_group_resource
from nadi.controller.rest.bodies import ReaderGroupName, ReaderGroupProperty
from nadi.controller.rest.endpoint import Call
from nadi.controller.rest.replies import no_content, reply, stream_array
from nadi.controller.state.metadata import GroupName
from nadi.limits import REST_LIST_PAGE


async def list_reader_groups(call: Call) -> Response:
    async def pages() -> AsyncIterator[list[ReaderGroupName]]:
        token = ""
        while True:
            found, token = await call.controller.list_reader_groups(call.scope, token, REST_LIST_PAGE)
            if not found:
                return
            yield [ReaderGroupName(group) for group in found if call.shows(reader_group_resource(call.scope, group))]

    return await stream_array(pages(), call.page, b'{"readerGroups":[', b"]}")


async def show_reader_group(call: Call) -> Response:
    name = GroupName(call.scope, call.group)
    config = (await call.controller.reader_group(name)).config
    streams = sorted(stream.rpartition("/")[2] for stream in config.starts)
    return reply(ReaderGroupProperty(*name, streams, []))


async def delete_reader_group(call: Call) -> Response:
    name = GroupName(call.scope, call.group)
    found = await call.controller.reader_group(name)
    await call.controller.delete_reader_group(name, found.group_id)
    return no_content()
