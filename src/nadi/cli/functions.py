"""`nadi function`: functions that streams trigger, which it runs, and shows; `nadi processor`: programs with
`nadi.process`, which it shows, stops and deletes."""

from __future__ import annotations

import os
import shlex
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nadi.cli.options import Controller, DeadLetters, Scope, TrustStore
from nadi.cli.printing import processes, say
from nadi.cli.session import Resource, Row, awaited, choose_one, option, taking
from nadi.defaults import DEFAULT_URI
from nadi.errors import ConflictError, InvalidArgumentError, NotFoundError, ProtocolError

if TYPE_CHECKING:
    from nadi.client import StreamManager
    from nadi.client.control.loop_thread import LoopThread
    from nadi.functions.progress import FunctionProgressRecord, FunctionRecord
    from nadi.process.processor import Positions

Name = Annotated[str, typer.Argument(help="The function's name.")]
AUTHORIZATION = "NADI_TARGET_AUTHORIZATION"


def _progress(manager: StreamManager, scope: str, name: str) -> tuple[LoopThread, FunctionProgressRecord]:
    from nadi.client.blocking.face import inside
    from nadi.functions.progress import FunctionProgressRecord

    thread, core = inside(manager)
    return thread, FunctionProgressRecord(core, scope, name)


def _rows(manager: StreamManager, scope: str) -> Any:
    from nadi.functions.progress import functions_of

    records, unreadable = awaited(manager, lambda core: functions_of(core, scope))
    return [_row(manager, scope, record)[0] for record in records.values()], unreadable


def _row(manager: StreamManager, scope: str, record: FunctionRecord) -> tuple[Row, Row]:
    """What it does, and its instances."""
    thread, progress = _progress(manager, scope, record.name)
    running, unread = thread.run(progress.running()), None
    group = manager.reader_group_manager(scope).get_reader_group(record.name)
    readers = [reader.split(".") for reader in group.online_readers()]
    workers = {one.name: [worker for member, worker, *_ in readers if member == one.name] for one in running}
    with suppress(NotFoundError, InvalidArgumentError):  # its stream was deleted, or made anew
        unread = group.unread_bytes()
    row = {
        "function": record.name,
        "stream": record.stream,
        "workers": sum(map(len, workers.values())),
        "events/s": round(sum(one.events_per_s for one in running), 1),
        "events": record.counts.events,
        "unread bytes": unread,
        "retries": record.counts.retries,
        "dead letters": record.counts.dead_letters,
    }
    return row, {
        f"instance {number}": f"{one.host}, process {one.pid}, {one.state}: "
        f"{', '.join(workers[one.name]) or 'no workers'}"
        for number, one in enumerate(running, 1)
    }


def _record(manager: StreamManager, scope: str, name: str) -> FunctionRecord:
    thread, progress = _progress(manager, scope, name)
    return thread.run(progress.record.get())


def _definition(record: FunctionRecord) -> Row:
    return {
        "handled by": record.handled_by,
        "output": record.output or "",
        "delivery": record.delivery,
        "dead-letter stream": record.dead_letters or "",
        "workers allowed": f"{record.min_workers} to {record.max_workers}",
    }


def _show(manager: StreamManager, scope: str, name: str) -> Row:
    record = _record(manager, scope, name)
    return {"function": record.name, "stream": record.stream} | _definition(record) | {"stopped": record.is_stopped}


def _status(manager: StreamManager, scope: str, name: str) -> Row:
    record = _record(manager, scope, name)
    row, instances = _row(manager, scope, record)
    counts = {one: getattr(record.counts, one) for one in ("outputs", "failures", "gaps")}
    return row | _definition(record) | counts | {"last error": record.last_error} | instances


def _stop(manager: StreamManager, scope: str, name: str) -> None:
    thread, progress = _progress(manager, scope, name)
    thread.run(progress.stop())


def _check_stopped(manager: StreamManager, scope: str, name: str) -> None:
    thread, progress = _progress(manager, scope, name)
    with suppress(ProtocolError):  # an unreadable one can be deleted
        thread.run(progress.record.get())
    if running := thread.run(progress.running()):
        hosts = ", ".join(sorted({instance.host for instance in running}))
        command = shlex.join(["nadi", "function", "stop", scope, name])
        raise ConflictError(f"function {name} is running on {hosts}: stop it first (`{command}`)")


def _delete(manager: StreamManager, scope: str, name: str) -> None:
    _check_stopped(manager, scope, name)
    manager.reader_group_manager(scope).delete_reader_group(name)


function_app = Resource(
    noun="function",
    names={"scope": Scope, "name": Name},
    columns=["function", "stream", "workers", "events/s", "events", "unread bytes", "retries", "dead letters"],
    rows=_rows,
    empty="Scope {scope} has no functions yet: run one with `nadi function run`.",
    show=_show,
    status=_status,
    stop=_stop,
    delete=_delete,
    find=_check_stopped,
    question=", its reader group and its counters? Run again, it starts over.",
).app()


_OPTIONS = {
    "name": option(str, "Its name, and that of its reader group."),
    "start": option(Literal["head", "tail"], "Where a new function begins: at the head.", "--from"),
    "min_workers": option(int, "Workers kept while nothing is unread: 0.", "--min"),
    "max_workers": option(int, "Most workers, one a segment: 16.", "--max"),
    "idle_s": option(float, "Seconds until spare workers are stopped: 60.", "--idle"),
    "batch_events": option(int, "Most events of a batch: 100.", "--batch"),
    "batch_ms": option(int, "How long a batch waits to be full: 0 ms."),
    "timeout_s": option(float, "Seconds that a call may take: 60.", "--timeout"),
    "memory_mib": option(int, "Memory of a handler's process: unlimited."),
    "retries": option(int, "After the first attempt at an event: 5."),
    "retry_first_s": option(float, "First pause: 0.1 s.", "--retry-first"),
    "retry_longest_s": option(float, "Longest pause: 30 s.", "--retry-longest"),
    "dead_letters": DeadLetters,
    "output": option(str, "Stream for what the handler returns."),
    "delivery": option(
        Literal["at-most-once", "at-least-once", "exactly-once"],
        "How often an event takes effect when something dies: at-least-once.",
    ),
    "key_field": option(str, "Field of JSON events that has the routing key."),
    "skip_damage": option(bool, "Continue after damaged data.", "--skip-damage"),
}
_OF_TARGETS = {
    "mode": option(Literal["binary", "structured", "batched"], "Form of the CloudEvents: binary."),
    "header": option(list[str], f"`Name: value` for the target; Authorization also from {AUTHORIZATION}."),
    "event_type": option(str, "The CloudEvents' type: nadi.event."),
    "content_type": option(str, "Of their data: application/octet-stream."),
    "target_trust_store": option(str, "PEM file of certificates, for the target."),
}


@function_app.command("run")
@taking(_OPTIONS | _OF_TARGETS)
def run_function(
    handler: Annotated[str | None, typer.Argument(help="`module:function` or `file.py:function`.")] = None,
    scope: Annotated[str | None, typer.Option(help="The scope of the stream.")] = None,
    stream: Annotated[str | None, typer.Option(help="The stream that triggers it.")] = None,
    target: Annotated[str | None, typer.Option(help="Post CloudEvents to this URL, without a handler.")] = None,
    exactly_once: Annotated[bool, typer.Option("--exactly-once", help="The same as --delivery exactly-once.")] = False,
    controller: Controller = DEFAULT_URI,
    trust_store: TrustStore = None,
    **given: Any,
) -> None:
    """Run a function until Ctrl-C: its workers follow the stream's segments."""
    from nadi.functions.definition import Function, function_of
    from nadi.functions.handlers.address import TargetAddress
    from nadi.functions.supervisor import run

    choose_one(exactly_once=exactly_once, delivery=given["delivery"] not in (None, "exactly-once"))
    if exactly_once:
        given["delivery"] = "exactly-once"
    given = {name: value for name, value in given.items() if value not in (None, [])}
    options: Any = {name: value for name, value in given.items() if name in _OPTIONS}
    if target is None:
        useless = [f"--{name.replace('_', '-')}" for name in _OF_TARGETS if name in given]
        if useless:
            raise InvalidArgumentError(f"{', '.join(useless)}: of no use without --target")
        if handler is None:
            raise InvalidArgumentError("say what handles the events: `module:function`, or --target URL")
        function = function_of(handler, scope, stream, options)
    elif handler is not None or scope is None or stream is None:
        raise InvalidArgumentError("a target needs --scope and --stream, and no handler")
    else:
        authorization = os.environ.get(AUTHORIZATION)
        headers = {"Authorization": authorization} if authorization else {}
        for one in given.pop("header", ()):
            key, colon, value = one.partition(":")
            if not colon:
                raise InvalidArgumentError(f"--header is `Name: value`, not {one!r}")
            headers[key.strip()] = value.strip()
        chosen = {name: value for name, value in given.items() if name in _OF_TARGETS}
        service = TargetAddress(target, headers=headers, trust_store=chosen.pop("target_trust_store", None), **chosen)
        function = Function(scope=scope, stream=stream, target=service, **options)
    run(function, controller, trust_store=trust_store)


@function_app.command("settle")
def settle(
    manager: StreamManager,
    scope: Scope,
    name: Name,
    redo: Annotated[bool, typer.Option("--redo", help="Handle their events again.")] = False,
) -> None:
    """Commit recorded outputs, and forget those of which the server no longer knows whether they were committed. The
    function, stopped, says when that is needed."""
    import logging

    from nadi.functions.writing import TransactionWriters, settle_all

    _check_stopped(manager, scope, name)

    async def settled(core: Any) -> int:
        group = await core.reader_group_manager(scope).get_reader_group(name)
        for reader in await group.online_readers():  # all dead
            await group.reader_offline(reader)
        log = logging.getLogger("nadi.functions")
        return await settle_all(group, TransactionWriters(core), log, on_unknown_commit="redo" if redo else "forget")

    say(f"forgot {awaited(manager, settled)} outputs of function {name}")


# --- processors ------------------------------------------------------------------------------------------


def _processors(manager: StreamManager, scope: str) -> Any:
    from nadi.process.processor import processors_of

    positions, unreadable = awaited(manager, lambda core: processors_of(core, scope).all())
    return [_positions(name, one) for name, one in positions.items()], unreadable


def _positions(name: str, one: Positions) -> Row:
    """name: STREAM/NAME."""
    return {
        "processor": name,
        "events": one.events,
        "dead letters": one.dead_letters,
        "gaps": one.gaps,
        "stopped": one.is_stopped,
    }


def _of_processor(what: str) -> Any:
    """`status`, `stop` or `delete` of `nadi.process` as a command has it."""

    def done(manager: StreamManager, scope: str, name: str) -> Any:
        from nadi import process

        stream, _, own_name = name.partition("/")
        return awaited(manager, lambda core: getattr(process, what)(core, scope, stream, own_name))

    return done


def _processor_status(manager: StreamManager, scope: str, name: str) -> Row:
    status = _of_processor("status")(manager, scope, name)
    row = _positions(name, status.positions) | {"cut": str(status.reached), "behind bytes": status.behind_bytes}
    return row | processes("worker", status.workers)


processor_app = Resource(
    noun="processor",
    names={"scope": Scope, "name": Annotated[str, typer.Argument(help="The processor, as STREAM/NAME.")]},
    columns=["processor", "events", "dead letters", "gaps", "stopped"],
    rows=_processors,
    empty="Scope {scope} has no processors yet: a program with `nadi.process` is one.",
    status=_processor_status,
    stop=_of_processor("stop"),
    delete=_of_processor("delete"),
    question=" and its positions? Run again, it starts over.",
).app()
