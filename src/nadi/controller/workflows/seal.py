"""Seal a stream forever: open transactions are aborted, committing ones finish, and all segments are sealed."""

from __future__ import annotations

from msgspec.structs import replace

from nadi.controller.engine.workflows import Workflows, seal_and_measure
from nadi.controller.state.metadata import StreamName
from nadi.controller.state.records import SealWork, StreamState
from nadi.controller.transactions.decisions import Transactions


async def begin(flow: Workflows, name: StreamName) -> SealWork | None:
    """Return the work to record; None if the stream is already sealed, as requested."""
    stream = (await flow.metadata.stream(name)).value
    return None if stream.state is StreamState.SEALED else SealWork()


async def steps(flow: Workflows, transactions: Transactions, name: StreamName, work: SealWork) -> None:
    stream, version = await flow.metadata.stream(name)
    if stream.state is StreamState.SEALED:
        return
    if stream.state is StreamState.ACTIVE:  # from here on no transaction can start
        await flow.metadata.put_stream(name, replace(stream, state=StreamState.SEALING), version)
    await transactions.end_all(name)
    stream, version = await flow.metadata.stream(name)
    await seal_and_measure(flow, name, [segment.id for segment in stream.segments], "seal")
    await flow.metadata.put_stream(name, replace(stream, state=StreamState.SEALED), version)
