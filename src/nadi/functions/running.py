"""Running a function: in a program of its own (`run`), or beside other things in an event loop (`serve`)."""

from __future__ import annotations

import asyncio
import logging
import os

from nadi.client.aio import StreamManager
from nadi.client.control.security import Credentials
from nadi.defaults import DEFAULT_URI
from nadi.errors import InvalidArgumentError
from nadi.functions.definition import Function
from nadi.functions.handlers.outcome import Handler
from nadi.functions.handlers.process import HandlerProcess
from nadi.functions.supervisor import Supervisor
from nadi.functions.writing import Step
from nadi.process.running import run_program

log = logging.getLogger("nadi.functions")


def run(
    function: Function,
    controller_uri: str = DEFAULT_URI,
    *,
    credentials: Credentials | None = None,
    trust_store: str | os.PathLike[str] | None = None,
) -> None:
    """Run a function until Ctrl-C or SIGTERM: what is being handled is finished and recorded, then this returns. It
    also returns once everything in a sealed stream was handled.

    FunctionStoppedError at an event that is given up, without a dead-letter stream; FunctionError if the handler can't
    be loaded. Logs go to `logging`, which is set up to write to standard error if nothing else was.

    >>> from nadi.functions import Function, run
    >>> run(Function(scope="home", stream="meters", handler="billing:bill"))  # doctest: +SKIP
    """
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it would log each request
    run_program(lambda manager, stop: serve(function, manager, stop=stop), controller_uri, credentials, trust_store)


async def serve(
    function: Function,
    manager: StreamManager,
    *,
    stop: asyncio.Event | None = None,
    step: Step = lambda name: None,
) -> None:
    """Run a function with a client of `nadi.client.aio`, until `stop` is set; see `run`.

    step: with delivery="exactly-once", called after each step of a batch: "begun", "written", "recorded", "committed".
    """
    if not isinstance(function, Function):
        raise InvalidArgumentError(f"{function!r} is no Function: make one of it, or decorate it with @function")
    logger = log.getChild(function.name)

    def handler(worker: str, worker_log: logging.Logger) -> Handler:
        return _handler_of(function, worker, worker_log)

    await Supervisor(function, manager, handler, step, logger).run(stop if stop is not None else asyncio.Event())


def _handler_of(function: Function, worker: str, logger: logging.Logger) -> Handler:
    if function.target is not None:
        from nadi.functions.handlers.target import HttpTarget

        return HttpTarget(function.target, function.timeout_s, wants_outputs=function.output is not None)
    return HandlerProcess(
        function.handled_by,
        function=function.name,
        worker=worker,
        by_list=function.by_batch,
        timeout_s=function.timeout_s,
        memory_mib=function.memory_mib,
        logger=logger,
    )
