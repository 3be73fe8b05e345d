"""Clients that use the client library like programs do: its writers, readers, transactions and tables.

Each has its own client and connections, which a kill ends with all pending work. Failed events may be stored or not;
then a new writer continues with new keys, since the order of two writers' events is undefined.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from grpc.aio import AioRpcError

from nadi.client.aio import StreamManager
from nadi.client.control.calls import _error_of
from nadi.client.control.controller import ControllerClient
from nadi.client.segments.key_reports import KeyReports, KeySampler
from nadi.client.tables.table import Table
from nadi.client.writing.ack import Ack
from nadi.controller.state.metadata import StreamName
from nadi.controller.state.records import TxnState
from nadi.errors import ConditionFailedError, TransactionFailedError, UnavailableError
from nadi.model.streamcut import StreamCut
from nadi.naming import TRANSACTION_DELIMITER, segment_name
from nadi.runtime import Runtime

from ..judging.history import GuaranteeError, History, Written
from ..judging.linear import ABSENT
from ..machine.process import Process
from ..world import World
from .base import Client

_AT_ONCE = 20  # pending events
_JUDGE_S = 60.0  # patience of the final checks: a server may just have died
ENDED = (TxnState.COMMITTED, TxnState.ABORTED)


class SimulatedController(ControllerClient):
    """The library's controller client, bypassing gRPC."""

    def __init__(self, world: World, timeout_s: float) -> None:
        super().__init__("controller:9091", timeout_s=timeout_s)
        self._world = world

    async def _send(self, rpc: str, request: Any, timeout_s: float) -> Any:
        try:
            return await self._world.rpc(rpc, request, timeout_s)
        except AioRpcError as error:
            raise _error_of(self.address, error) from None


class _KeyReports(KeyReports):
    """Key reports by the process's clock: the library's clock is bound before a simulation starts."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        self._runtime = runtime

    def sampler(self, segment: str) -> KeySampler:
        parent = segment.partition(TRANSACTION_DELIMITER)[0]
        if parent not in self._samplers:
            self._samplers[parent] = KeySampler(self._runtime.monotonic, self._runtime.chance)
        return super().sampler(segment)


class LibraryClient(Client):
    """`stream`: the stream it writes or reads."""

    def __init__(
        self, world: World, history: History, name: str, stream: StreamName, process: Process | None = None
    ) -> None:
        super().__init__(world, history, name, process)
        self.stream = stream

    @asynccontextmanager
    async def manager(self, patience_s: float | None = None) -> AsyncIterator[StreamManager]:
        controller = SimulatedController(self.world, patience_s or self.patience_s)
        async with StreamManager(controller=controller) as manager:
            manager._stores.key_reports = _KeyReports(self.process.runtime)
            yield manager

    async def go(self, mean_s: float) -> None:
        """Work until something fails for longer than the library's patience."""
        raise NotImplementedError

    async def run(self, mean_s: float) -> None:
        while True:
            try:
                await self.go(mean_s)
            except UnavailableError as error:
                self.world.note(self.name, "gives up", type(error).__name__, str(error)[:80])
                await self.pause(2.0)


class LibraryWriter(LibraryClient):
    """Writes events with its own keys, several at a time."""

    async def go(self, mean_s: float) -> None:
        counts = {f"{self.name}-{self.id()}-{key}": itertools.count(1) for key in range(3)}
        async with self.manager() as manager:
            writer = await manager.create_writer(self.stream.scope, self.stream.stream, ack_timeout=4 * self.patience_s)
            under_way: set[asyncio.Task[None]] = set()
            while True:
                for _ in range(self.chance.randrange(1, 8)):
                    key = self.chance.choice(list(counts))
                    event = self.history.written(Written(self.stream.key, key, next(counts[key])))
                    ack = await writer.write(event.payload, key)
                    under_way.add(self.process.start(self._acknowledged(event, ack)))
                if self.chance.random() < 0.5 or len(under_way) > _AT_ONCE:
                    await asyncio.gather(*under_way)
                under_way = {task for task in under_way if not task.done() or task.result()}
                await self.pause(mean_s)

    async def _acknowledged(self, event: Written, ack: Ack) -> None:
        await ack
        event.acknowledged = True
        self.world.note(self.name, "stored", event.key, event.number)


class LibraryReader(LibraryClient):
    """Follows the stream, and restarts occasionally: from its position, or from the head."""

    async def go(self, mean_s: float) -> None:
        start: StreamCut | None = None
        async with self.manager() as manager:
            while True:
                start = await self._follow(manager, start, 5 * mean_s)
                if self.chance.random() < 0.3:
                    start = None
                await self.pause(mean_s)

    async def _follow(self, manager: StreamManager, start: StreamCut | None, seconds: float) -> StreamCut:
        reader = await manager.create_reader(self.stream.scope, self.stream.stream, start=start)
        last: dict[str, int] = {}
        try:
            async with asyncio.timeout(seconds):
                while (found := await reader.next_block()) is not None:
                    self.check_block(*found, last)
        except TimeoutError:
            pass
        finally:
            position = reader.position()
            reader.close()
        return position

    async def read_all(self) -> set[bytes]:
        """Read from the head to the stream's current end."""
        seen: set[bytes] = set()
        last: dict[str, int] = {}
        async with self.manager(_JUDGE_S) as manager:
            info = await manager.stream_info(self.stream.scope, self.stream.stream)
            reader = await manager.create_reader(self.stream.scope, self.stream.stream, end=info.tail)
            while (found := await reader.next_block()) is not None:
                seen.update(self.check_block(*found, last))
        return seen

    def check_block(self, segment_id: int, block: Any, last: dict[str, int]) -> list[bytes]:
        """Check a block's events. last: by key, the number of the last event that this reader got."""
        segment = segment_name(self.stream.scope, self.stream.stream, segment_id)
        payloads = [bytes(payload) for payload in block.events()]
        for payload, offset in zip(payloads, block.offsets().tolist(), strict=True):
            event = self.history.read_one(segment, offset, payload)
            if last.get(event.key, -1) >= event.number:
                raise GuaranteeError(f"{self.name} got {event} after number {last[event.key]}")
            last[event.key] = event.number
        self.world.note(self.name, "was given", len(payloads), "events of", segment_id)
        return payloads


class LibraryTransactions(LibraryClient):
    """Starts transactions, writes to them, and commits, aborts or abandons them."""

    async def go(self, mean_s: float) -> None:
        async with self.manager() as manager:
            writer = await manager.create_transaction_writer(
                self.stream.scope, self.stream.stream, lease_ms=20_000, ack_timeout=4 * self.patience_s
            )
            while True:
                await self.pause(mean_s)
                transaction = await writer.begin_txn()
                txn = transaction.txn_id.int
                self.history.transactions[txn] = TxnState.OPEN
                events = [
                    self.history.written(Written(self.stream.key, f"{self.name}-{txn:x}-{number}", number, txn))
                    for number in range(1, self.chance.randrange(2, 7))
                ]
                how = self.chance.random()
                try:
                    for event in events:
                        transaction.write_event(event.payload, event.key)
                    await transaction.flush()
                    for event in events:
                        event.segment = "stored"
                    if how < 0.7:
                        await transaction.commit(timeout=60.0)
                        self.history.promised[txn] = TxnState.COMMITTED
                    elif how < 0.9:
                        await transaction.abort(timeout=60.0)
                        self.history.promised[txn] = TxnState.ABORTED
                    self.world.note(self.name, "is done with", f"{txn:x}", how < 0.7)
                except TransactionFailedError:
                    pass  # it took too long and was aborted


class LibraryTables(LibraryClient):
    """Reads, puts and removes a few keys that others change too; each change is conditional on the version read."""

    KEYS = (b"red", b"green", b"blue")
    NAME = "registers"

    async def go(self, mean_s: float) -> None:
        async with self.manager() as manager:
            table = Table(manager._stores, self.stream.scope, self.NAME)
            await table.create()
            while True:
                await self.pause(mean_s)
                try:
                    await self._change(table, self.chance.choice(self.KEYS), mean_s / 10)
                except UnavailableError:
                    pass  # the outcome is unknown

    async def read(self) -> None:
        """Read all keys once."""
        async with self.manager(_JUDGE_S) as manager:
            table = Table(manager._stores, self.stream.scope, self.NAME)
            await table.create()  # its creator may have been killed before
            for key in self.KEYS:
                await self._get(table, key)

    async def _get(self, table: Table, key: bytes) -> int:
        call = self.history.register(key).begin("get", self.world.loop.now)
        entry = await table.get(key)
        version = ABSENT if entry is None else entry.version
        call.end(self.world.loop.now, version, b"" if entry is None else entry.value)
        return version

    async def _change(self, table: Table, key: bytes, mean_s: float) -> None:
        version = await self._get(table, key)
        await self.pause(mean_s)  # others change the key meanwhile
        register, is_put = self.history.register(key), version == ABSENT or self.chance.random() < 0.8
        value = f"{self.name}-{self.id()}".encode()
        call = register.begin("put" if is_put else "remove", self.world.loop.now, version, value if is_put else b"")
        try:
            if is_put:
                made = await table.put(key, value, version)
                call.end(self.world.loop.now, made)
            else:
                await table.remove(key, version)
                call.end(self.world.loop.now)
        except ConditionFailedError:
            call.refuse(self.world.loop.now)
        self.world.note(self.name, "changed" if not call.is_refused else "could not change", key, version)
