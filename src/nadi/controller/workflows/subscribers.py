"""Subscribers of a stream: the reader groups whose published stream cuts hold retention back.

A group subscribes to each of its streams while it is created or updated, and publishes a cut whenever
its readers are done with what lies before. Subscriptions belong to the stream: they are dropped with it, and
a new stream of that name gets them when the group is updated.
"""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace

from nadi.controller.engine.workflows import Workflows
from nadi.controller.state.history import Cut, EpochHistory, ask
from nadi.controller.state.metadata import GroupName, StreamName
from nadi.controller.state.records import ReaderGroupRecord, Subscriber
from nadi.errors import EpochGoneError, GenerationMismatchError, InvalidStreamCutError, SubscriberNotFoundError
from nadi.limits import NAME_MAX_CHARS

_NAME_MAX_CHARS = 2 * NAME_MAX_CHARS + 1  # "scope/reader group"


async def subscribe(flow: Workflows, stream: StreamName, name: GroupName, group: ReaderGroupRecord) -> None:
    """Make the group a subscriber, or bring its subscription to the group's generation; its cut stays. The caller holds
    the group's lock, for which no workflow of a stream with subscribers ever waits."""
    async with flow.lock(stream):  # a stream under deletion takes its subscribers along
        if await flow.metadata.find_stream(stream) is None:
            return  # deleted since the request was checked

        async def subscribed(held: Subscriber | None) -> Subscriber:
            if held is not None and held.group_id == group.group_id:  # it may publish a cut meanwhile
                return replace(held, generation=group.generation)
            return Subscriber(group.group_id, group.generation)

        what = f"the subscription of {name} to {stream}"
        await flow.metadata.subscribers(stream).change(name.key, what, subscribed, fresh=True)


async def unsubscribe(flow: Workflows, stream: StreamName, name: GroupName) -> None:
    await flow.metadata.subscribers(stream).remove([name.key])


async def names(flow: Workflows, stream: StreamName) -> list[str]:
    await flow.metadata.stream(stream)
    return [key async for key, _ in flow.metadata.subscribers(stream).scan()]


async def publish(
    flow: Workflows, stream: StreamName, subscriber: str, group_id: str, generation: int, cut: Cut
) -> None:
    """Record the cut before which the group needs nothing any more; an empty one lifts its constraint."""
    await flow.metadata.stream(stream)
    if not 0 < len(subscriber) <= _NAME_MAX_CHARS:
        raise SubscriberNotFoundError(stream.key, subscriber)

    async def published(held: Subscriber | None) -> Subscriber:
        if held is None or held.group_id != group_id:
            raise SubscriberNotFoundError(stream.key, subscriber)
        if held.generation != generation:
            raise GenerationMismatchError(subscriber, generation, held.generation)
        if cut:
            history = await flow.metadata.history(stream)
            check = partial(_check, stream=stream, subscriber=subscriber, cut=cut, before=held.cut)
            await ask(flow.clock, history, check)
        return replace(held, cut=dict(cut), published_ms=flow.clock.now_ms())

    what = f"the subscription of {subscriber} to {stream}"
    await flow.metadata.subscribers(stream).change(subscriber, what, published, fresh=True)


def _check(history: EpochHistory, stream: StreamName, subscriber: str, cut: Cut, before: Cut) -> None:
    try:
        if not history.is_valid_cut(cut):
            raise InvalidStreamCutError(f"not a stream cut of {stream}: take one from a checkpoint")
        if before and not history.is_at_or_after(cut, before):
            raise InvalidStreamCutError(f"{subscriber} has published a later stream cut of {stream} already")
    except EpochGoneError as error:
        raise InvalidStreamCutError(f"{subscriber} can't publish a stream cut of {stream}: {error}") from error
