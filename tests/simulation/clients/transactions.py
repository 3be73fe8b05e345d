"""Clients that write in transactions."""

from __future__ import annotations

import asyncio
import itertools

from nadi.controller.state.metadata import StreamName
from nadi.controller.state.records import TxnState
from nadi.errors import ConflictError, NotFoundError
from nadi.naming import transaction_segment_name

from ..judging.history import History, Written
from ..machine.process import Process
from ..world import World
from .appending import Appender
from .base import Client


class Transactions(Client):
    """Starts transactions, writes to them, and commits, aborts or abandons them."""

    def __init__(
        self, world: World, history: History, name: str, stream: StreamName, process: Process | None = None
    ) -> None:
        super().__init__(world, history, name, process)
        self.stream = stream
        self._number = itertools.count(1)

    async def run(self, mean_s: float) -> None:
        while True:
            await self.pause(mean_s)
            await self._one()

    async def _one(self) -> None:
        started = await self.control("begin", lambda controller: controller.transactions.create(self.stream, 20_000))
        txn, key = started.txn_id, f"{self.name}-{next(self._number)}"
        self.history.transactions[txn] = TxnState.OPEN
        appender = Appender(self.world, self.history, f"{self.name}/{txn:x}", self.process)
        numbers = itertools.count(1)
        try:
            for number in range(self.chance.randrange(1, 6)):
                segment = self.chance.choice(started.ranges)
                # each with its own key, since they go to random segments
                event = self.history.written(Written(self.stream.key, f"{key}-{number}", number, txn))
                name = transaction_segment_name(self.stream.segment(segment.id), txn)
                if await appender.append(name, event.payload, next(numbers)) is None:
                    break  # it was aborted because it took too long
                event.segment = name
            else:
                await self._end(txn)
        except NotFoundError:
            pass
        while self.history.transactions[txn] not in (TxnState.COMMITTED, TxnState.ABORTED):
            await self.pause(5.0)
            self.history.transactions[txn] = await self.control(
                "state", lambda controller: controller.transactions.state(self.stream, txn)
            )

    async def _end(self, txn: int) -> None:
        how = self.chance.random()
        try:
            if how < 0.7:
                await self.control("commit", lambda controller: controller.transactions.commit(self.stream, txn))
                self.history.promised[txn] = TxnState.COMMITTED
            elif how < 0.9:
                await self.control("abort", lambda controller: controller.transactions.abort(self.stream, txn))
                self.history.promised[txn] = TxnState.ABORTED
        except ConflictError:
            pass  # it had already ended


async def learn_ends(client: Client, history: History, stream: StreamName) -> None:
    """Determine the outcome of transactions whose client was stopped before it knew; wait until they have ended."""
    for txn, state in history.transactions.items():
        while state not in (TxnState.COMMITTED, TxnState.ABORTED):
            state = await client.control("state", lambda controller: controller.transactions.state(stream, txn))  # noqa: B023
            history.transactions[txn] = state
            await asyncio.sleep(5.0)
