"""The RPCs of key-value tables."""

from __future__ import annotations

from typing import Any

from nadi.controller.controller import Controller
from nadi.controller.grpc.messages import ranges_message
from nadi.controller.state.metadata import StreamName, TableName
from nadi.controller.state.records import TableConfig
from nadi.errors import (
    AlreadyExistsError,
    InvalidNameError,
    KeyValueTableNotFoundError,
    ScopeNotFoundError,
)
from nadi.wire.rpc import controller_pb2 as pb


class KeyValueTableService:
    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    async def create_key_value_table(self, request: Any) -> Any:
        status = pb.CreateKeyValueTableStatus
        config = TableConfig(
            request.partitionCount, request.primaryKeyLength, request.secondaryKeyLength, request.rolloverSizeBytes
        )
        try:
            await self._controller.create_table(_name(request), config)
        except InvalidNameError:
            return status(status=status.INVALID_TABLE_NAME)
        except ScopeNotFoundError:
            return status(status=status.SCOPE_NOT_FOUND)
        except AlreadyExistsError:
            return status(status=status.TABLE_EXISTS)
        return status(status=status.SUCCESS)

    async def get_current_segments_key_value_table(self, request: Any) -> Any:
        """Its partitions, under the table's own name: clients add the suffix themselves when they ask for a place."""
        name = _name(request)
        table = await self._controller.table(name)
        return await ranges_message(StreamName(*name), table.segments)

    async def list_key_value_tables_in_scope(self, request: Any) -> Any:
        scope, token = request.scope.scope, request.continuationToken.token
        status = pb.KVTablesInScopeResponse.SUCCESS
        names: list[str] = []
        try:
            names, token = await self._controller.list_tables(scope, token)
        except ScopeNotFoundError:
            status = pb.KVTablesInScopeResponse.SCOPE_NOT_FOUND
        return pb.KVTablesInScopeResponse(
            kvtables=[pb.KeyValueTableInfo(scope=scope, kvtName=name) for name in names],
            continuationToken=pb.ContinuationToken(token=token),
            status=status,
        )

    async def get_key_value_table_configuration(self, request: Any) -> Any:
        status = pb.KeyValueTableConfigResponse
        name = _name(request)
        try:
            config = (await self._controller.table(name)).config
        except KeyValueTableNotFoundError:
            return status(status=status.TABLE_NOT_FOUND)
        message = pb.KeyValueTableConfig(
            scope=name.scope,
            kvtName=name.table,
            partitionCount=config.partitions,
            primaryKeyLength=config.primary_key_bytes,
            secondaryKeyLength=config.secondary_key_bytes,
            rolloverSizeBytes=config.rollover_size_bytes,
        )
        return status(status=status.SUCCESS, config=message)

    async def delete_key_value_table(self, request: Any) -> Any:
        status = pb.DeleteKVTableStatus
        try:
            await self._controller.delete_table(_name(request))
        except KeyValueTableNotFoundError:
            return status(status=status.TABLE_NOT_FOUND)
        return status(status=status.SUCCESS)


def _name(message: Any) -> TableName:
    return TableName(message.scope, message.kvtName)
