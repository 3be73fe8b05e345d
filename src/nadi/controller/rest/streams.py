"""Streams over REST: made, described, sealed and deleted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from starlette.responses import Response

from nadi.controller.access import shows
from nadi.controller.rest.bodies import StreamProperty, config_of, stream_property
from nadi.controller.rest.endpoint import Call
from nadi.controller.rest.replies import no_content, reply, stream_array
from nadi.controller.state.metadata import StreamName
from nadi.controller.state.records import Stream
from nadi.errors import InvalidArgumentError
from nadi.limits import REST_LIST_PAGE
from nadi.naming import check_name

SHOW_INTERNAL = "showInternalStreams"
BY_TAG = "tag"


async def list_streams(call: Call) -> Response:
    wanted = _filter(call)

    async def pages() -> AsyncIterator[list[StreamProperty]]:
        token = ""
        while True:
            found, token = await call.controller.list_stream_records(call.scope, token, REST_LIST_PAGE)
            if not found:
                return
            yield [
                stream_property(StreamName(call.scope, name), stream.config)
                for name, stream in found
                if wanted(name, stream) and shows(call.caller, call.scope, name)
            ]

    return await stream_array(pages(), call.page, b'{"streams":[', b"]}")


def _filter(call: Call) -> Callable[[str, Stream], bool]:
    """Which streams the query asks for; without one those that users made."""
    kind = call.request.query_params.get("filter_type")
    value = call.request.query_params.get("filter_value")
    if kind is None:
        return lambda name, stream: not name.startswith("_")
    if kind == SHOW_INTERNAL:
        return lambda name, stream: name.startswith("_")
    if kind == BY_TAG and value:
        return lambda name, stream: not name.startswith("_") and value in stream.config.tags
    if kind == BY_TAG:
        raise InvalidArgumentError("filter_type=tag needs the tag as filter_value")
    raise InvalidArgumentError(f"filter_type is {SHOW_INTERNAL} or {BY_TAG}, not {kind[:40]!r}")


async def create_stream(call: Call) -> Response:
    name = StreamName(call.scope, call.body.streamName)
    check_name("stream", name.stream)
    config = config_of(call.body, with_max=True)
    await call.controller.create_stream(name, config)
    return reply(stream_property(name, config), 201)


async def show_stream(call: Call) -> Response:
    return reply(stream_property(call.stream, (await call.controller.stream(call.stream)).config))


async def update_stream(call: Call) -> Response:
    config = config_of(call.body, with_max=False)
    await call.controller.update_stream(call.stream, config)
    return reply(stream_property(call.stream, config))


async def delete_stream(call: Call) -> Response:
    await call.controller.delete_stream(call.stream)
    return no_content()


async def change_state(call: Call) -> Response:
    """SEALED is the only state that can be asked for."""
    await call.controller.seal_stream(call.stream)
    return reply(call.body)
