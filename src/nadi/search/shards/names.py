"""The names of indexes and shards. They become paths, and whoever may write in a scope may write any into its table; so
what is read from there has the exact form that is made here, or is refused."""

from __future__ import annotations

import hashlib
import json
import re
import time
import uuid
from typing import Annotated

import msgspec

INDEX = re.compile(r"\A[0-9a-f]{32}\Z")
SHARD = re.compile(r"\A[0-9]{13}-[0-9a-f]{32}\Z")
FILE = re.compile(r"\A[0-9a-f]{32}(\.[a-z0-9]{1,20}){1,3}\Z")  # of tantivy's, in a shard
IndexId = Annotated[str, msgspec.Meta(pattern=INDEX.pattern)]
ShardId = Annotated[str, msgspec.Meta(pattern=SHARD.pattern)]


def new_index() -> str:
    return uuid.uuid4().hex


def new_name() -> str:
    """Of a shard, which nobody else has. It begins with when it was made."""
    return f"{time.time_ns() // 1_000_000:013d}-{uuid.uuid4().hex}"


def made_ms(shard: str) -> int | None:
    """When a shard's name was made, in ms since 1970; None for a name that isn't a shard's."""
    return int(shard[:13]) if SHARD.match(shard) else None


def folder_of_index(*of: str) -> str:
    """The folder of an index's shards, in its store and in caches: of its scope, stream and id, so that an id of
    another's index leads to nothing of it."""
    assert INDEX.match(of[-1]), of
    return hashlib.blake2b(json.dumps(of).encode(), digest_size=16).hexdigest()
