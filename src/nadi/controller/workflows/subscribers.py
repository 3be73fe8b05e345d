"""Subscribers of a stream: the reader groups whose published stream cuts hold retention back.

A group subscribes to each of its streams while it is created or updated, and publishes a cut whenever its readers no
longer need earlier data. Subscriptions belong to the stream: they are deleted with it, and a new stream of that name
gets them when the group is updated.
"""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace

from nadi.controller.engine.workflows import Workflows
from nadi.controller.state.history import Cut, EpochHistory, ask
from nadi.controller.state.metadata import GroupName, StreamName
from nadi.controller.state.records import ReaderGroupRecord, Subscriber
from nadi.errors import EpochExpiredError, GenerationMismatchError, InvalidStreamCutError, SubscriberNotFoundError
from nadi.limits import NAME_MAX_CHARS

_NAME_MAX_CHARS = 2 * NAME_MAX_CHARS + 1  # "scope/reader group"


async def subscribe(flow: Workflows, stream: StreamName, name: GroupName, group: ReaderGroupRecord) -> None:
    """Make the group a subscriber, or set its subscription to the group's generation, keeping its cut. The caller has
    the group's lock, for which no workflow of a stream with subscribers ever waits."""
    async with flow.lock(stream):  # deleting a stream deletes its subscribers
        if await flow.metadata.find_stream(stream) is None:
            return  # deleted since the request was checked

        async def subscribed(current: Subscriber | None) -> Subscriber:
            if current is not None and current.group_id == group.group_id:  # a cut may be published concurrently
                return replace(current, generation=group.generation)
            return Subscriber(group.group_id, group.generation)

        subject = f"the subscription of {name} to {stream}"
        await flow.metadata.subscribers(stream).change(name.key, subject, subscribed, fresh=True)


async def unsubscribe(flow: Workflows, stream: StreamName, name: GroupName) -> None:
    await flow.metadata.subscribers(stream).remove([name.key])


async def names(flow: Workflows, stream: StreamName) -> list[str]:
    await flow.metadata.stream(stream)
    return [key async for key, _ in flow.metadata.subscribers(stream).scan()]


async def publish(
    flow: Workflows, stream: StreamName, subscriber: str, group_id: str, generation: int, cut: Cut
) -> None:
    """Record the cut before which the group needs no data; an empty one lifts its constraint."""
    await flow.metadata.stream(stream)
    if not 0 < len(subscriber) <= _NAME_MAX_CHARS:
        raise SubscriberNotFoundError(stream.key, subscriber)

    async def published(current: Subscriber | None) -> Subscriber:
        if current is None or current.group_id != group_id:
            raise SubscriberNotFoundError(stream.key, subscriber)
        if current.generation != generation:
            raise GenerationMismatchError(subscriber, generation, current.generation)
        if cut:
            history = await flow.metadata.history(stream)
            check = partial(_check, stream=stream, subscriber=subscriber, cut=cut, before=current.cut)
            await ask(flow.clock, history, check)
        return replace(current, cut=dict(cut), published_ms=flow.clock.now_ms())

    subject = f"the subscription of {subscriber} to {stream}"
    await flow.metadata.subscribers(stream).change(subscriber, subject, published, fresh=True)


def _check(history: EpochHistory, stream: StreamName, subscriber: str, cut: Cut, before: Cut) -> None:
    try:
        if not history.is_valid_cut(cut):
            raise InvalidStreamCutError(f"the cut is not a stream cut of {stream}: take one from a checkpoint")
        if before and not history.is_at_or_after(cut, before):
            raise InvalidStreamCutError(f"{subscriber} has already published a later stream cut of {stream}")
    except EpochExpiredError as error:
        raise InvalidStreamCutError(f"{subscriber} can't publish a stream cut of {stream}: {error}") from error
