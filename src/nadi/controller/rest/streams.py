"""Streams over REST: made, described, sealed and deleted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from starlette.responses import Response

from nadi.access.names import Act
from nadi.access.permissions import Permission
from nadi.controller.access import shows
from nadi.controller.rest.bodies import (
    CreateStream,
    Kept,
    StreamProperty,
    StreamsList,
    StreamStateBody,
    UpdateStream,
    config_of,
    kept,
    stream_property,
)
from nadi.controller.rest.endpoint import SCOPE, STREAM, Call, Parameter, endpoint, on_scope, on_stream
from nadi.controller.rest.replies import no_content, reply, stream_list
from nadi.controller.state.metadata import StreamName
from nadi.controller.state.records import Stream
from nadi.errors import InvalidArgumentError
from nadi.limits import REST_LIST_PAGE
from nadi.naming import check_name

SHOW_INTERNAL = "showInternalStreams"
BY_TAG = "tag"


@endpoint(
    "GET",
    SCOPE + "/streams",
    on_scope(Permission.READ),
    StreamsList,
    codes={400: "The filter is not one of these."},
    query=(
        Parameter("filter_type", "Which streams.", {"type": "string", "enum": [SHOW_INTERNAL, BY_TAG]}),
        Parameter("filter_value", "The tag.", {"type": "string"}),
    ),
)
async def list_streams(call: Call) -> Response:
    """List a scope's streams: those of users, the internal ones, or those with a tag."""
    wanted = _filter(call)

    def shown(found: Sequence[tuple[str, Stream]]) -> list[StreamProperty]:
        return [
            stream_property(StreamName(call.scope, name), stream.config)
            for name, stream in found
            if wanted(name, stream) and shows(call.caller, call.scope, name)
        ]

    fetch = partial(call.controller.list_stream_records, call.scope, count=REST_LIST_PAGE)
    return await stream_list("streams", fetch, shown, call.page)


def _filter(call: Call) -> Callable[[str, Stream], bool]:
    """Which streams the query selects; by default those that users created."""
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


@endpoint(
    "POST",
    SCOPE + "/streams",
    on_scope(Permission.READ_UPDATE),
    StreamProperty,
    status=201,
    body=CreateStream,
    codes={409: "The stream exists already."},
)
async def create_stream(call: Call) -> Response:
    """Create a stream."""
    name = StreamName(call.scope, call.body.streamName)
    check_name("stream", name.stream)
    config = config_of(call.body)
    await call.controller.create_stream(name, config)
    return reply(stream_property(name, config), 201)


@endpoint("GET", STREAM, on_stream(Act.LOOK), StreamProperty)
async def show_stream(call: Call) -> Response:
    """Show a stream's configuration."""
    return reply(stream_property(call.stream, (await call.controller.stream(call.stream)).config))


@endpoint(
    "PUT",
    STREAM,
    on_stream(Act.CHANGE),
    StreamProperty,
    body=UpdateStream,
    codes={409: "Another change of the stream goes on.", 500: "The stream is sealed."},
)
async def update_stream(call: Call) -> Response:
    """Replace a stream's whole configuration."""
    config = config_of(call.body)
    await call.controller.update_stream(call.stream, config)
    return reply(stream_property(call.stream, config))


@endpoint("GET", STREAM + "/retention", on_stream(Act.CHANGE), Kept)
async def show_kept(call: Call) -> Response:
    """Show what a stream keeps now, and who holds its head back from where its retention policy would put it."""
    return reply(kept(call.stream, await call.controller.retention.describe(call.stream)))


@endpoint("DELETE", STREAM, on_stream(Act.END), status=204, codes={412: "The stream is not sealed."})
async def delete_stream(call: Call) -> Response:
    """Delete a sealed stream."""
    await call.controller.delete_stream(call.stream)
    return no_content()


@endpoint("PUT", STREAM + "/state", on_stream(Act.END), StreamStateBody, body=StreamStateBody)
async def change_state(call: Call) -> Response:
    """Seal a stream."""  # the only state that can be requested
    await call.controller.seal_stream(call.stream)
    return reply(call.body)
