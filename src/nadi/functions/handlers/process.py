"""The handler's process, from its worker's side: started, called, and replaced whenever it died, hung or ran out of
memory. Whatever the handler does to it is an outcome like any other."""

from __future__ import annotations

import asyncio
import logging
import mmap
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from nadi.functions.handlers.event import Event
from nadi.functions.handlers.host import LENGTH, NOTE, Call, Start, Started
from nadi.functions.handlers.outcome import Failure, Outcome
from nadi.functions.stopped import FunctionError, HandlerNotStartedError
from nadi.limits import FUNCTION_START_S, MIB

_DYING_S = 5.0


class HandlerProcess:
    """A `Handler`. `logger` names the worker."""

    def __init__(
        self,
        handler: str,
        *,
        function: str,
        worker: str,
        by_list: bool | None,
        timeout_s: float,
        memory_mib: int | None,
        logger: logging.Logger,
    ) -> None:
        self._handler, self._function, self._worker, self._by_list = handler, function, worker, by_list
        self._timeout_s, self._memory_mib, self._log = timeout_s, memory_mib, logger
        self._process: asyncio.subprocess.Process | None = None
        self._socket: socket.socket | None = None
        self._notes: mmap.mmap | None = None
        self._ending: asyncio.Task[None] | None = None
        self._outcomes = msgspec.msgpack.Decoder(Outcome)

    @property
    def pid(self) -> int | None:
        """Of the process; None while there is none."""
        return None if self._process is None or self._process.returncode is not None else self._process.pid

    async def start(self) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        memory = os.memfd_create("nadi-function")
        try:
            os.ftruncate(memory, NOTE.size)
            self._notes = mmap.mmap(memory, NOTE.size)
            self._socket = ours
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "nadi.functions.handlers.host", str(theirs.fileno())),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), memory),
                start_new_session=True,
            )
        except OSError as error:
            raise HandlerNotStartedError(f"no process can be started for handler {self._handler}: {error}") from error
        finally:
            theirs.close()
            os.close(memory)
        self._ending = asyncio.create_task(_follow_to_its_end(self._process, ours))
        start = Start(
            *(self._handler, self._function, self._worker, self._by_list, self._memory_mib or 0, memory),
            log_level=self._log.getEffectiveLevel(),
            path=[folder or os.getcwd() for folder in sys.path],
        )
        answer: bytes | None = None
        try:
            async with asyncio.timeout(FUNCTION_START_S):
                with suppress(ConnectionError):
                    await self._send(start)
                    answer = await self._receive()
        except TimeoutError:
            await self.close()
            raise HandlerNotStartedError(
                f"the process of handler {self._handler} was not ready in {FUNCTION_START_S:g} s: look at its module"
            ) from None
        if answer is None:
            how = await self._how_it_ended()
            raise HandlerNotStartedError(f"the process of handler {self._handler} {how} while it imported its module")
        failure = msgspec.msgpack.decode(answer, type=Started).failure
        if failure is not None:
            await self.close()
            raise FunctionError(f"the handler {self._handler} can't be loaded: {failure.error}: {failure.message}")

    async def call(self, events: Sequence[Event], attempt: int) -> Outcome:
        if self.pid is None:
            await self.close()  # it died between two calls: not these events' fault
            await self.start()
        assert self._notes is not None
        NOTE.pack_into(self._notes, 0, 0, time.monotonic())
        try:
            outcome = await self._answer(Call(list(events), attempt))
        except asyncio.CancelledError:
            await self.close()  # its answer must not be taken for that of a later call
            raise
        if outcome.failure is not None and outcome.failure.error == "MemoryError":
            await self.close()
        return outcome

    async def _answer(self, call: Call) -> Outcome:
        asking = asyncio.create_task(self._ask(call))
        try:
            while True:
                at, since = self._noted()
                left_s = since + self._timeout_s - time.monotonic()
                done, _ = await asyncio.wait([asking], timeout=max(left_s, 0.0))
                if done:
                    break
                if self._noted() == (at, since):
                    await self.close()
                    message = f"still not done after {self._timeout_s:g} s; its process was killed"
                    return self._lost(call, at, Failure(kind="timed out", error="Timeout", message=message))
            answer = asking.result()
        finally:
            asking.cancel()
        if answer is not None:
            return self._outcomes.decode(answer)
        at, _ = self._noted()
        message = f"the handler's process {await self._how_it_ended()}"
        failure = Failure(kind="died", error="ProcessDied", message=message)
        return self._lost(call, at, failure)

    async def _ask(self, call: Call) -> bytes | None:
        try:
            await self._send(call)
            return await self._receive()
        except ConnectionError:
            return None

    def _noted(self) -> tuple[int, float]:
        assert self._notes is not None
        at, since = NOTE.unpack_from(self._notes)
        return at, since

    def _lost(self, call: Call, at: int, failure: Failure) -> Outcome:
        """Those before `at` were handled, but what they gave died with the process."""
        if self._by_list:
            return Outcome(done=0, failure=failure, together=len(call.events))
        return Outcome(done=min(max(at, 0), len(call.events) - 1), failure=failure, is_lost=True)

    async def _how_it_ended(self) -> str:
        process = self._process
        if process is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_DYING_S):
                    await process.wait()
        await self.close()
        code = None if process is None else process.returncode
        if code is None or code >= 0:
            return f"ended with exit code {code}"
        if code == -signal.SIGKILL:
            return "was killed with SIGKILL (perhaps for the memory it took)"
        with suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
        return f"was killed by signal {-code}"

    async def _send(self, message: msgspec.Struct) -> None:
        assert self._socket is not None
        data = msgspec.msgpack.encode(message)
        await asyncio.get_running_loop().sock_sendall(self._socket, LENGTH.pack(len(data)) + data)

    async def _receive(self) -> bytes | None:
        head = await self._exactly(LENGTH.size)
        return None if head is None else await self._exactly(LENGTH.unpack(head)[0])

    async def _exactly(self, size: int) -> bytes | None:
        assert self._socket is not None
        loop, data = asyncio.get_running_loop(), bytearray()
        while len(data) < size:
            piece = await loop.sock_recv(self._socket, min(size - len(data), MIB))
            if not piece:
                return None
            data += piece
        return bytes(data)

    async def close(self) -> None:
        """End the process, whatever it is doing."""
        process = self._process
        if process is not None:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            with suppress(TimeoutError):
                async with asyncio.timeout(_DYING_S):
                    await process.wait()
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None


async def _follow_to_its_end(process: asyncio.subprocess.Process, connection: socket.socket) -> None:
    """What a process started may hold the other end of its connection, and would never close it."""
    await process.wait()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RD)  # what it still sent can be read
