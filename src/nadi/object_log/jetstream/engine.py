"""A `LogEngine` over a JetStream stream. An object is a message with its own subject, published on the condition that
the subject is empty. Messages never change, and only `delete` removes them.

All requests go to the stream's leader, because other servers may lag. Its answers carry messages in base64, which costs
2 ms per MiB; with 32 reads at a time, as in a walk of the log, 1,000 frames take a fifth of a second.

The stream is created once, and checked by each server that starts, because some settings may discard acknowledged
messages. Whether its servers sync before they acknowledge (`sync_interval: always`) can't be queried.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime

import msgspec
from nats.aio.msg import Msg

from nadi.errors import StoreError, UnavailableError
from nadi.limits import CHAIN_OBJECT_MOST_BYTES
from nadi.object_log.engine import AgedObject, check_name
from nadi.object_log.failures import RefusedError
from nadi.object_log.jetstream import connection as js
from nadi.object_log.jetstream.location import JetStreamLocation
from nadi.object_log.outcomes import patiently
from nadi.runtime import Runtime
from nadi.wire.fields import Buffer

log = logging.getLogger(__name__)

_CREATE = {"Nats-Expected-Last-Subject-Sequence": "0"}
_HEADERS_BYTES = 128  # upper bound per message; headers count towards its size
_DELETES_AT_ONCE = 32
_PAGE = 1_000
_IDLE_NS = 30_000_000_000  # an abandoned listing expires after this
_IN_THREAD_BYTES = 1 << 20  # larger answers are decoded outside the loop


class _PublishAck(msgspec.Struct):
    stream: str
    seq: int


class _Message(msgspec.Struct):
    data: bytes = b""  # msgspec reads base64


class _StoredMessage(msgspec.Struct):
    message: _Message


class _DeleteReply(msgspec.Struct):
    success: bool


class _Consumer(msgspec.Struct):
    """Consumer of a listing. ts: the present, by the clock of the stream's leader."""

    name: str
    num_pending: int
    ts: datetime = datetime.min.replace(tzinfo=UTC)  # missing before 2.10: all objects then count as new


async def open_jetstream(where: JetStreamLocation, runtime: Runtime, *, make: bool) -> JetStreamEngine:
    """Open the engine of that stream. make: create a missing stream; not for a cluster that already has data.

    InvalidArgumentError: `nats-py` isn't installed. StoreError: NATS refuses, or the stream can't hold a log; the
    message says how to fix it. UnavailableError: it doesn't respond for a long time.
    """
    largest_bytes = CHAIN_OBJECT_MOST_BYTES + _HEADERS_BYTES
    connection = js.JetStreamConnection(where, largest_bytes)
    try:
        await patiently("open the log", lambda: open_stream(where, connection, largest_bytes, make=make), runtime)
    except BaseException:
        await connection.close()
        raise
    return JetStreamEngine(where.stream, connection, js.JetStreamConnection(where, 0), runtime)


class JetStreamEngine:
    """Engine of one stream. reading: a separate connection for reads, whose large answers would delay
    acknowledgements."""

    def __init__(
        self, stream: str, connection: js.JetStreamConnection, reading: js.JetStreamConnection, runtime: Runtime
    ) -> None:
        self._stream, self._connection, self._runtime = stream, connection, runtime
        self._reading = reading
        self._newest = 0  # highest acknowledged sequence number of the stream
        self._has_lost = ""

    async def create(self, name: str, parts: Sequence[Buffer]) -> bool:
        subject, what = self._subject(name), f"store {name}"
        if self._has_lost:
            raise RefusedError(self._has_lost)
        before = self._newest
        answer = await self._connection.ask(what, subject, b"".join(parts), _CREATE)
        stored = js.decoded(what, answer.data, _PublishAck)
        if isinstance(stored, js.Problem):
            if stored.err_code == js.EXISTS:
                return False
            raise js.error_for(what, stored)
        if stored.stream != self._stream or stored.seq <= before:
            self._has_lost = (
                f"the stream {self._stream} has lost acknowledged messages: it stored {name} as number "
                f"{stored.seq:,}, after {before:,}. Writing has stopped. Stop all servers of the cluster, and "
                "check the stream"
            )
            raise RefusedError(self._has_lost)
        self._newest = max(self._newest, stored.seq)
        return True

    async def get(self, name: str, position: int = 0, length: int | None = None) -> memoryview | None:
        subject, what = self._subject(name), f"read {name}"
        request = msgspec.json.encode({"last_by_subj": subject})
        answer = await self._reading.read(what, f"$JS.API.STREAM.MSG.GET.{self._stream}", request)
        if len(answer.data) < _IN_THREAD_BYTES:
            response = js.decoded(what, answer.data, _StoredMessage)
        else:
            response = await self._runtime.in_thread(js.decoded, what, answer.data, _StoredMessage)
        if isinstance(response, js.Problem) and response.err_code == js.NOT_THERE:
            return None
        data = memoryview(js.require(what, response).message.data)
        return data[position : None if length is None else position + length]

    async def listed(self, prefix: str) -> AsyncIterator[Mapping[str, int]]:
        async with aclosing(self._pages(prefix)) as pages:
            async for page, _ in pages:
                yield {self._name(message.subject): _size_bytes(message) for message in page}

    async def aged(self, prefix: str) -> AsyncIterator[list[AgedObject]]:
        async with aclosing(self._pages(prefix)) as pages:
            async for page, now in pages:
                ages = [now - message.metadata.timestamp for message in page]
                yield [
                    AgedObject(self._name(message.subject), _size_bytes(message), age.total_seconds())
                    for message, age in zip(page, ages, strict=True)
                ]

    async def _pages(self, prefix: str) -> AsyncGenerator[tuple[list[Msg], datetime], None]:
        """Yield pages of messages, and the time at which the listing began, from a temporary consumer of headers."""
        folder, what = prefix.strip("/"), f"list {prefix}"
        config = {
            "deliver_policy": "all",
            "ack_policy": "none",
            "replay_policy": "instant",
            "filter_subject": f"{self._subject(folder)}.>" if folder else f"{self._stream}.>",
            "headers_only": True,
            "inactive_threshold": _IDLE_NS,
            "num_replicas": 1,
            "mem_storage": True,
        }
        request = {"stream_name": self._stream, "config": config}
        consumer = js.require(
            what, await self._connection.call(what, f"CONSUMER.CREATE.{self._stream}", request, _Consumer)
        )
        try:
            remaining = consumer.num_pending
            while remaining > 0:
                page = await self._page(what, consumer.name)
                if not page:
                    break  # the remaining messages have been deleted
                remaining -= len(page)
                yield page, consumer.ts
        finally:
            deletion = await self._connection.call(
                what, f"CONSUMER.DELETE.{self._stream}.{consumer.name}", {}, _DeleteReply
            )
            if isinstance(deletion, js.Problem) and deletion.err_code != js.CONSUMER_GONE:
                raise js.error_for(what, deletion)

    async def _page(self, what: str, consumer: str) -> list[Msg]:
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{consumer}"
        request = msgspec.json.encode({"batch": _PAGE, "no_wait": True})
        messages = await self._connection.pull(what, subject, request, _PAGE)
        status = js.status_of(messages[-1])
        if status not in ("", "404", "408"):
            raise UnavailableError(f"NATS can't {what}: {status} {(messages[-1].headers or {}).get('Description', '')}")
        return messages[:-1] if status else messages

    async def delete(self, names: Sequence[str]) -> None:
        subjects = {name: self._subject(name) for name in names}

        async def delete(name: str) -> None:
            request, what = {"filter": subjects[name]}, f"delete {name}"
            js.require(what, await self._connection.call(what, f"STREAM.PURGE.{self._stream}", request, _DeleteReply))

        for first in range(0, len(names), _DELETES_AT_ONCE):
            batch = names[first : first + _DELETES_AT_ONCE]
            for failed in await asyncio.gather(*map(delete, batch), return_exceptions=True):
                if failed is not None:
                    raise failed

    def _subject(self, name: str) -> str:
        """Return a name's subject, unique because names can't contain underscores."""
        check_name(name)
        return f"{self._stream}.{name.replace('.', '_').replace('/', '.')}"

    def _name(self, subject: str) -> str:
        return subject[len(self._stream) + 1 :].replace(".", "/").replace("_", ".")

    async def close(self) -> None:
        await self._connection.close()
        await self._reading.close()


def _size_bytes(message: Msg) -> int:
    return int((message.headers or {})["Nats-Msg-Size"])


REPLICAS = 3


class StreamSettings(msgspec.Struct):
    """Relevant settings of a stream. -1 and 0 mean no limit. mirror, sources: of other streams."""

    name: str
    subjects: list[str] = []
    retention: str = ""
    storage: str = ""
    discard: str = ""
    num_replicas: int = 0
    max_age: int = 0
    max_msgs_per_subject: int = -1
    max_msg_size: int = -1
    sealed: bool = False
    deny_purge: bool = False
    no_ack: bool = False
    allow_msg_ttl: bool = False
    mirror: object = None
    sources: list[object] | None = None
    subject_transform: object = None
    persist_mode: str | None = None


class JetStreamInfo(msgspec.Struct):
    config: StreamSettings


async def open_stream(
    where: JetStreamLocation, connection: js.JetStreamConnection, largest_bytes: int, *, make: bool
) -> None:
    """Check that the stream exists and retains its messages. make: create a missing stream. StoreError: it is missing,
    or unsuitable for a log. UnavailableError: NATS can't answer, or refuses."""
    what, name = f"query the stream {where.stream}", where.stream
    response = await connection.call(what, f"STREAM.INFO.{name}", {}, JetStreamInfo)
    if isinstance(response, js.Problem) and response.err_code == js.NO_STREAM:
        if not make:
            raise StoreError(
                f"the cluster's log was in the stream {name}, which these NATS servers don't have: start "
                "this server with the cluster's log, or restore the stream"
            )
        what = f"create the stream {name}"
        settings = {
            "name": name,
            "subjects": [f"{name}.>"],
            "retention": "limits",
            "storage": "file",
            "discard": "new",  # never stored messages
            "num_replicas": where.replicas or REPLICAS,
        }
        response = await connection.call(what, f"STREAM.CREATE.{name}", settings, JetStreamInfo)
        if isinstance(response, js.Problem) and response.err_code == js.NOT_CLUSTERED and where.replicas is None:
            response = await connection.call(
                what, f"STREAM.CREATE.{name}", {**settings, "num_replicas": 1}, JetStreamInfo
            )
        if isinstance(response, js.Problem) and response.err_code == js.TAKEN:  # just created by another server
            response = await connection.call(what, f"STREAM.INFO.{name}", {}, JetStreamInfo)
    config = js.require(what, response).config
    problems = list(_problems(config, where, largest_bytes))
    if problems:
        raise StoreError(
            f"the stream {name} can't hold a log: {'; '.join(problems)}. Change the settings, or name a new stream, "
            "which this server creates"
        )
    if config.num_replicas == 1:
        log.warning(
            "the cluster's log, the NATS stream %s, has a single copy: a disk failure loses acknowledged writes", name
        )


def _problems(config: StreamSettings, where: JetStreamLocation, largest_bytes: int) -> list[str]:
    """Return the settings that may discard or reject messages."""
    subject = f"{config.name}.>"
    rules = [
        (config.subjects == [subject], f"its subjects must be {subject}"),
        (config.retention == "limits", f"its retention must be limits, not {config.retention}"),
        (config.storage == "file", f"its storage must be file, not {config.storage}"),
        (config.discard == "new", "it must discard new messages, not old ones, when it is full"),
        (config.max_age == 0, "it must not limit the age of messages"),
        (not config.allow_msg_ttl, "it must not allow message TTLs"),
        (config.max_msgs_per_subject <= 0, "it must not limit the messages per subject"),
        (config.max_msg_size <= 0 or config.max_msg_size >= largest_bytes, "it must not limit the message size"),
        (not config.sealed and not config.deny_purge, "it must allow purging"),
        (not config.no_ack, "it must acknowledge"),
        (config.persist_mode in (None, "", "default"), f"it must not persist {config.persist_mode}"),
        (config.mirror is None and not config.sources, "it must not have a mirror or sources"),
        (config.subject_transform is None, "it must not transform subjects"),
        (
            where.replicas is None or config.num_replicas >= where.replicas,
            f"it has {config.num_replicas} replicas instead of {where.replicas}",
        ),
    ]
    return [text for is_right, text in rules if not is_right]
