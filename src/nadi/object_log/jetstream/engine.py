"""A `LogEngine` over a stream of JetStream. An object is a message with a subject of its own, which is published on the
condition that the subject has none. Messages never change, and nothing but `delete` takes one away.

All is asked of the stream's leader: the others may be behind. Its answers have the message in base64, which costs 2 ms
a MiB; 32 at a time, as a log is walked, 1,000 frames take a fifth of a second.

The stream is made once, and looked at by each server that starts, for a setting may take away what was acknowledged.
Whether its servers sync what they acknowledge (`sync_interval: always`) none of them tells.
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
from nadi.object_log.engine import Aged, check_name
from nadi.object_log.failures import RefusedError
from nadi.object_log.jetstream import connection as js
from nadi.object_log.jetstream.location import JetStreamLocation
from nadi.object_log.outcomes import patiently
from nadi.runtime import Runtime
from nadi.wire.fields import Buffer

log = logging.getLogger(__name__)

_CREATE = {"Nats-Expected-Last-Subject-Sequence": "0"}
_HEADERS_BYTES = 128  # of a message, at most, which count towards its size
_DELETES_AT_ONCE = 32
_PAGE = 1_000
_IDLE_NS = 30_000_000_000  # after this, a listing that nobody continues is forgotten
_IN_THREAD_BYTES = 1 << 20  # an answer as large as this is decoded outside the loop


class _PublishAck(msgspec.Struct):
    stream: str
    seq: int


class _Message(msgspec.Struct):
    data: bytes = b""  # msgspec reads base64


class _Got(msgspec.Struct):
    message: _Message


class _DeleteReply(msgspec.Struct):
    success: bool


class _Consumer(msgspec.Struct):
    """ts: now, by the clock of the stream's leader."""

    name: str
    num_pending: int
    ts: datetime = datetime.min.replace(tzinfo=UTC)  # servers before 2.10 don't say: then nothing is old


async def open_jetstream(where: JetStreamLocation, runtime: Runtime, *, make: bool) -> JetStreamEngine:
    """The engine of that stream. make: make it if it isn't there; not for a cluster that has something in it.
    InvalidArgumentError: `nats-py` isn't installed. StoreError: NATS refuses, or the stream can't hold a log; the text
    says what to do. UnavailableError: it gives no answer for a long while."""
    largest_bytes = CHAIN_OBJECT_MOST_BYTES + _HEADERS_BYTES
    connection = js.JetStreamConnection(where, largest_bytes)
    try:
        await patiently("open the log", lambda: open_stream(where, connection, largest_bytes, make=make), runtime)
    except BaseException:
        await connection.close()
        raise
    return JetStreamEngine(where.stream, connection, js.JetStreamConnection(where, 0), runtime)


class JetStreamEngine:
    """reading: a connection of its own for what is read, which may be large, and delay acknowledgements."""

    def __init__(
        self, stream: str, connection: js.JetStreamConnection, reading: js.JetStreamConnection, runtime: Runtime
    ) -> None:
        self._stream, self._connection, self._runtime = stream, connection, runtime
        self._reading = reading
        self._newest = 0  # sequence number in the stream that was acknowledged
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
            raise js.told(what, stored)
        if stored.stream != self._stream or stored.seq <= before:
            self._has_lost = (
                f"the stream {self._stream} has forgotten messages that it acknowledged: it gave {name} number "
                f"{stored.seq:,}, after {before:,}. Nothing more is stored. Stop all servers of the cluster, and find "
                "out what became of the stream"
            )
            raise RefusedError(self._has_lost)
        self._newest = max(self._newest, stored.seq)
        return True

    async def get(self, name: str, position: int = 0, length: int | None = None) -> memoryview | None:
        subject, what = self._subject(name), f"read {name}"
        request = msgspec.json.encode({"last_by_subj": subject})
        answer = await self._reading.read(what, f"$JS.API.STREAM.MSG.GET.{self._stream}", request)
        if len(answer.data) < _IN_THREAD_BYTES:
            found = js.decoded(what, answer.data, _Got)
        else:
            found = await self._runtime.in_thread(js.decoded, what, answer.data, _Got)
        if isinstance(found, js.Problem) and found.err_code == js.NOT_THERE:
            return None
        data = memoryview(js.good(what, found).message.data)
        return data[position : None if length is None else position + length]

    async def listed(self, prefix: str) -> AsyncIterator[Mapping[str, int]]:
        async with aclosing(self._pages(prefix)) as pages:
            async for page, _ in pages:
                yield {self._name(one.subject): _size_bytes(one) for one in page}

    async def aged(self, prefix: str) -> AsyncIterator[list[Aged]]:
        async with aclosing(self._pages(prefix)) as pages:
            async for page, now in pages:
                ages = [now - one.metadata.timestamp for one in page]
                yield [
                    Aged(self._name(one.subject), _size_bytes(one), age.total_seconds())
                    for one, age in zip(page, ages, strict=True)
                ]

    async def _pages(self, prefix: str) -> AsyncGenerator[tuple[list[Msg], datetime], None]:
        """Messages, and the time at which the listing began. By a consumer of headers, made for this."""
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
        consumer = js.good(
            what, await self._connection.call(what, f"CONSUMER.CREATE.{self._stream}", request, _Consumer)
        )
        try:
            left = consumer.num_pending
            while left > 0:
                page = await self._page(what, consumer.name)
                if not page:
                    break  # what was to come has been deleted
                left -= len(page)
                yield page, consumer.ts
        finally:
            found = await self._connection.call(
                what, f"CONSUMER.DELETE.{self._stream}.{consumer.name}", {}, _DeleteReply
            )
            if isinstance(found, js.Problem) and found.err_code != js.CONSUMER_GONE:
                raise js.told(what, found)

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
            js.good(what, await self._connection.call(what, f"STREAM.PURGE.{self._stream}", request, _DeleteReply))

        for first in range(0, len(names), _DELETES_AT_ONCE):
            batch = names[first : first + _DELETES_AT_ONCE]
            for failed in await asyncio.gather(*map(delete, batch), return_exceptions=True):
                if failed is not None:
                    raise failed

    def _subject(self, name: str) -> str:
        """Names have no underscores, so no two have one subject."""
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
    """Of a stream: those of its settings that matter here. -1 and 0 are no limit. mirror, sources: of other streams."""

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


class Made(msgspec.Struct):
    config: StreamSettings


async def open_stream(
    where: JetStreamLocation, connection: js.JetStreamConnection, largest_bytes: int, *, make: bool
) -> None:
    """See that the stream is there and keeps what it has; make: make it if it isn't. StoreError: it isn't there, or is
    none that a log can be in. UnavailableError: NATS can't answer, or refuses."""
    what, name = f"look at the stream {where.stream}", where.stream
    found = await connection.call(what, f"STREAM.INFO.{name}", {}, Made)
    if isinstance(found, js.Problem) and found.err_code == js.NO_STREAM:
        if not make:
            raise StoreError(
                f"the cluster's log was in the stream {name}, and these NATS servers have none of that name: start "
                "this server with the log that the cluster has, or restore the stream"
            )
        what = f"make the stream {name}"
        new = {
            "name": name,
            "subjects": [f"{name}.>"],
            "retention": "limits",
            "storage": "file",
            "discard": "new",  # never what is there
            "num_replicas": where.replicas or REPLICAS,
        }
        found = await connection.call(what, f"STREAM.CREATE.{name}", new, Made)
        if isinstance(found, js.Problem) and found.err_code == js.NOT_CLUSTERED and where.replicas is None:
            found = await connection.call(what, f"STREAM.CREATE.{name}", {**new, "num_replicas": 1}, Made)
        if isinstance(found, js.Problem) and found.err_code == js.TAKEN:  # another has just made it
            found = await connection.call(what, f"STREAM.INFO.{name}", {}, Made)
    config = js.good(what, found).config
    wrong = list(_wrong(config, where, largest_bytes))
    if wrong:
        raise StoreError(
            f"the stream {name} can't hold a log: {'; '.join(wrong)}. Change that, or give the log a stream of its "
            "own, which this server makes"
        )
    if config.num_replicas == 1:
        log.warning(
            "the cluster's log, the NATS stream %s, has one copy: what was acknowledged is lost with its disk", name
        )


def _wrong(config: StreamSettings, where: JetStreamLocation, largest_bytes: int) -> list[str]:
    """What of it may lose something, or refuse it."""
    subject = f"{config.name}.>"
    rules = [
        (config.subjects == [subject], f"its subjects must be {subject}"),
        (config.retention == "limits", f"its retention must be limits, not {config.retention}"),
        (config.storage == "file", f"its storage must be file, not {config.storage}"),
        (config.discard == "new", "it must discard new messages, not old ones, when it is full"),
        (config.max_age == 0, "it must have no maximum age"),
        (not config.allow_msg_ttl, "its messages must have no TTL"),
        (config.max_msgs_per_subject <= 0, "it must have no maximum of messages of a subject"),
        (config.max_msg_size <= 0 or config.max_msg_size >= largest_bytes, "it must have no maximum message size"),
        (not config.sealed and not config.deny_purge, "it must allow to purge"),
        (not config.no_ack, "it must acknowledge"),
        (config.persist_mode in (None, "", "default"), f"it must not persist {config.persist_mode}"),
        (config.mirror is None and not config.sources, "it must have no mirror or sources"),
        (config.subject_transform is None, "it must not transform subjects"),
        (
            where.replicas is None or config.num_replicas >= where.replicas,
            f"it has {config.num_replicas} replicas, and {where.replicas} are wanted",
        ),
    ]
    return [text for is_right, text in rules if not is_right]
