"""Reader groups over REST: those whose state stream (`_RG` and the group's name) a scope holds.

Which readers are online is written in that stream, in the Java client's own serialisation, which nadi
does not read: `onlineReaderIds` is always empty.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from starlette.responses import Response

from nadi.controller.rest.access import listed, reader_group_resource
from nadi.controller.rest.bodies import ReaderGroupName
from nadi.controller.rest.endpoint import Call
from nadi.controller.rest.replies import stream_array
from nadi.limits import REST_LIST_PAGE
from nadi.naming import READER_GROUP_PREFIX


async def list_reader_groups(call: Call) -> Response:
    async def pages() -> AsyncIterator[list[ReaderGroupName]]:
        token = ""
        while True:
            found, token = await call.controller.list_stream_records(call.scope, token, REST_LIST_PAGE)
            if not found:
                return
            groups = [
                name.removeprefix(READER_GROUP_PREFIX) for name, _ in found if name.startswith(READER_GROUP_PREFIX)
            ]
            yield [
                ReaderGroupName(group)
                for group in groups
                if await listed(call.api.authorise, call.request, reader_group_resource(call.scope, group))
            ]

    return await stream_array(pages(), b'{"readerGroups":[', b"]}")
