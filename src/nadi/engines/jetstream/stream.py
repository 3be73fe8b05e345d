"""The stream that keeps a log: made once, and looked at by each server that starts, for a setting may take away what
was acknowledged.

Whether its servers sync what they acknowledge (`sync_interval: always`) none of them tells.
"""

from __future__ import annotations

import logging

import msgspec

from nadi.engines.jetstream.connection import Connection, good
from nadi.engines.jetstream.failures import NO_STREAM, NOT_CLUSTERED, TAKEN, Problem, told
from nadi.engines.jetstream.where import Where
from nadi.errors import StoreError

log = logging.getLogger(__name__)
REPLICAS = 3


class Config(msgspec.Struct):
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
    config: Config


async def open_stream(where: Where, connection: Connection, largest_bytes: int, *, make: bool) -> None:
    """See that the stream is there and keeps what it has; make: make it if it isn't.

    Raises:
        StoreError: it isn't there, or is none that a log can be in.
        UnavailableError: NATS can't answer, or refuses.
    """
    what, name = f"look at the stream {where.stream}", where.stream
    found = await connection.call(what, f"STREAM.INFO.{name}", {}, Made)
    if isinstance(found, Problem) and found.err_code == NO_STREAM:
        if not make:
            raise StoreError(
                f"the cluster's log was in the stream {name}, and these NATS servers have none of that name: start "
                "this server with the log that the cluster has, or restore the stream"
            )
        found = await _made(where, connection)
    config = good(what, found).config
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


async def _made(where: Where, connection: Connection) -> Made | Problem:
    """Whoever is first makes it; JetStream tells the others that it is there, if it is the same."""
    what, name = f"make the stream {where.stream}", where.stream
    config = {
        "name": name,
        "subjects": [f"{name}.>"],
        "retention": "limits",
        "storage": "file",
        "discard": "new",  # never what is there
        "num_replicas": where.replicas or REPLICAS,
    }
    found = await connection.call(what, f"STREAM.CREATE.{name}", config, Made)
    if isinstance(found, Problem) and found.err_code == NOT_CLUSTERED and where.replicas is None:
        config["num_replicas"] = 1
        found = await connection.call(what, f"STREAM.CREATE.{name}", config, Made)
    if isinstance(found, Problem):
        if found.err_code == TAKEN:  # another has just made it
            return await connection.call(what, f"STREAM.INFO.{name}", {}, Made)
        raise told(what, found)
    return found


def _wrong(config: Config, where: Where, largest_bytes: int) -> list[str]:
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
