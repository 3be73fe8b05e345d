"""The RPCs of key-value tables."""

from __future__ import annotations

from nadi.controller.grpc.messages import ranges_message
from nadi.controller.grpc.outcomes import Fields, Rpcs, outcomes
from nadi.controller.state.metadata import StreamName, TableName
from nadi.controller.state.records import TableConfig
from nadi.errors import AlreadyExistsError, InvalidNameError, KeyValueTableNotFoundError, ScopeNotFoundError
from nadi.wire.rpc import controller_pb2 as pb


class KeyValueTableService(Rpcs):
    @outcomes(
        pb.CreateKeyValueTableStatus,
        INVALID_TABLE_NAME=InvalidNameError,
        SCOPE_NOT_FOUND=ScopeNotFoundError,
        TABLE_EXISTS=AlreadyExistsError,
    )
    async def create_key_value_table(self, request: pb.KeyValueTableConfig) -> None:
        config = TableConfig(
            request.partitionCount, request.primaryKeyLength, request.secondaryKeyLength, request.rolloverSizeBytes
        )
        await self._controller.create_table(_name(request), config)

    async def get_current_segments_key_value_table(self, request: pb.KeyValueTableInfo) -> pb.SegmentRanges:
        """Its partitions, under the table's own name: clients add the suffix themselves when they ask for a place."""
        name = _name(request)
        table = await self._controller.table(name)
        return await ranges_message(StreamName(*name), table.segments)

    async def list_key_value_tables_in_scope(self, request: pb.KVTablesInScopeRequest) -> pb.KVTablesInScopeResponse:
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

    @outcomes(pb.KeyValueTableConfigResponse, TABLE_NOT_FOUND=KeyValueTableNotFoundError)
    async def get_key_value_table_configuration(self, request: pb.KeyValueTableInfo) -> Fields:
        name = _name(request)
        config = (await self._controller.table(name)).config
        message = pb.KeyValueTableConfig(
            scope=name.scope,
            kvtName=name.table,
            partitionCount=config.partitions,
            primaryKeyLength=config.primary_key_bytes,
            secondaryKeyLength=config.secondary_key_bytes,
            rolloverSizeBytes=config.rollover_size_bytes,
        )
        return {"config": message}

    @outcomes(pb.DeleteKVTableStatus, TABLE_NOT_FOUND=KeyValueTableNotFoundError)
    async def delete_key_value_table(self, request: pb.KeyValueTableInfo) -> None:
        await self._controller.delete_table(_name(request))


def _name(message: pb.KeyValueTableInfo | pb.KeyValueTableConfig) -> TableName:
    return TableName(message.scope, message.kvtName)
