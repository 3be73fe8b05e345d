"""Key-value tables as the controller knows them: created, told, listed, deleted."""

from __future__ import annotations

from dataclasses import dataclass

from nadi.client.control.arguments import checked
from nadi.client.control.controller import WORKFLOW_TIMEOUT_S, ControllerClient, all_pages, ranges_of
from nadi.errors import (
    InvalidArgumentError,
    InvalidNameError,
    KeyValueTableNotFoundError,
    NotFoundError,
    ScopeNotFoundError,
    UnavailableError,
)
from nadi.limits import PREFIXED_NAME_MAX_CHARS, STREAM_MAX_SEGMENTS, TABLE_FIXED_KEY_MAX_BYTES
from nadi.model.segments import SegmentRange
from nadi.naming import check_name
from nadi.wire.rpc import controller_pb2 as pb


@checked()
@dataclass(frozen=True, slots=True)
class KeyValueTableConfiguration:
    """How long the keys of a table are, and over how many partitions they are spread; it never changes."""

    primary_key_bytes: int
    secondary_key_bytes: int = 0
    partitions: int = 1
    rollover_size_bytes: int = 0  # 0: the server's own

    def __post_init__(self) -> None:
        if not (self.primary_key_bytes > 0 and self.secondary_key_bytes >= 0 and self.rollover_size_bytes >= 0):
            raise InvalidArgumentError(
                "a key-value table needs a primary key of at least one byte, and no negative sizes"
            )
        if self.primary_key_bytes + self.secondary_key_bytes > TABLE_FIXED_KEY_MAX_BYTES:
            raise InvalidArgumentError(f"both keys of a table together have at most {TABLE_FIXED_KEY_MAX_BYTES} bytes")
        if not 1 <= self.partitions <= STREAM_MAX_SEGMENTS:
            raise InvalidArgumentError(f"a key-value table has 1 to {STREAM_MAX_SEGMENTS:,} partitions")


async def create(controller: ControllerClient, scope: str, table: str, config: KeyValueTableConfiguration) -> bool:
    """Create a table; return False if it already exists."""
    check_name("key-value table", table, max_chars=PREFIXED_NAME_MAX_CHARS)
    request = pb.KeyValueTableConfig(
        scope=scope,
        kvtName=table,
        partitionCount=config.partitions,
        primaryKeyLength=config.primary_key_bytes,
        secondaryKeyLength=config.secondary_key_bytes,
        rolloverSizeBytes=config.rollover_size_bytes,
    )
    reply = await controller.call("createKeyValueTable", request, pb.CreateKeyValueTableStatus, WORKFLOW_TIMEOUT_S)
    if reply.status == reply.SCOPE_NOT_FOUND:
        raise ScopeNotFoundError(scope)
    if reply.status == reply.INVALID_TABLE_NAME:
        raise InvalidNameError("key-value table", table, f"at most {PREFIXED_NAME_MAX_CHARS} letters, digits, '.', '-'")
    if reply.status not in (reply.SUCCESS, reply.TABLE_EXISTS):
        raise UnavailableError(f"the controller couldn't create key-value table {scope}/{table}: try again")
    return reply.status == reply.SUCCESS


async def delete(controller: ControllerClient, scope: str, table: str) -> bool:
    """Delete a table; return False if there is none."""
    request = pb.KeyValueTableInfo(scope=scope, kvtName=table)
    reply = await controller.call("deleteKeyValueTable", request, pb.DeleteKVTableStatus, WORKFLOW_TIMEOUT_S)
    if reply.status not in (reply.SUCCESS, reply.TABLE_NOT_FOUND):
        raise UnavailableError(f"the controller couldn't delete key-value table {scope}/{table}: try again")
    return reply.status == reply.SUCCESS


async def tables(controller: ControllerClient, scope: str) -> list[str]:
    """Return the names of the scope's tables."""

    async def page(at: pb.ContinuationToken) -> tuple[list[str], pb.ContinuationToken]:
        request = pb.KVTablesInScopeRequest(scope=pb.ScopeInfo(scope=scope), continuationToken=at)
        reply = await controller.call("listKeyValueTablesInScope", request, pb.KVTablesInScopeResponse)
        if reply.status == reply.SCOPE_NOT_FOUND:
            raise ScopeNotFoundError(scope)
        return [info.kvtName for info in reply.kvtables], reply.continuationToken

    return await all_pages(page)


async def configuration(controller: ControllerClient, scope: str, table: str) -> KeyValueTableConfiguration:
    request = pb.KeyValueTableInfo(scope=scope, kvtName=table)
    reply = await controller.call("getKeyValueTableConfiguration", request, pb.KeyValueTableConfigResponse)
    if reply.status == reply.TABLE_NOT_FOUND:
        raise KeyValueTableNotFoundError(scope, table)
    if reply.status != reply.SUCCESS:
        raise UnavailableError(f"the controller couldn't describe key-value table {scope}/{table}: try again")
    found = reply.config
    return KeyValueTableConfiguration(
        found.primaryKeyLength, found.secondaryKeyLength, found.partitionCount, found.rolloverSizeBytes
    )


async def partitions(controller: ControllerClient, scope: str, table: str) -> list[SegmentRange]:
    """The table's segments by their part of the key space."""
    request = pb.KeyValueTableInfo(scope=scope, kvtName=table)
    try:
        reply = await controller.call("getCurrentSegmentsKeyValueTable", request, pb.SegmentRanges)
    except NotFoundError as error:
        raise KeyValueTableNotFoundError(scope, table) from error
    return ranges_of(reply.segmentRanges)
