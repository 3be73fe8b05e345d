"""`nadi function`: run and manage functions triggered by streams; `nadi processor`: manage `nadi.process` programs."""

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

Name = Annotated[str, typer.Argument(help="Name of the function.")]
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
    """Return the row of a function, and a row of its instances."""
    thread, progress = _progress(manager, scope, record.name)
    running, unread_bytes = thread.run(progress.running()), None
    group = manager.reader_group_manager(scope).get_reader_group(record.name)
    readers = [reader.split(".") for reader in group.online_readers()]
    workers = {each.name: [worker for member, worker, *_ in readers if member == each.name] for each in running}
    with suppress(NotFoundError, InvalidArgumentError):  # its stream was deleted or recreated
        unread_bytes = group.unread_bytes()
    row = {
        "function": record.name,
        "stream": record.stream,
        "workers": sum(map(len, workers.values())),
        "events_per_s": round(sum(each.events_per_s for each in running), 1),
        "events": record.counts.events,
        "unread_bytes": unread_bytes,
        "retries": record.counts.retries,
        "dead_letters": record.counts.dead_letters,
    }
    return row, {
        f"instance_{number}": f"{each.host}, process {each.pid}, {each.state}: "
        f"{', '.join(workers[each.name]) or 'no workers'}"
        for number, each in enumerate(running, 1)
    }


def _record(manager: StreamManager, scope: str, name: str) -> FunctionRecord:
    thread, progress = _progress(manager, scope, name)
    return thread.run(progress.record.get())


def _definition(record: FunctionRecord) -> Row:
    return {
        "handler": record.handled_by,
        "output": record.output or "",
        "delivery": record.delivery,
        "dead_letter_stream": record.dead_letters or "",
        "workers_allowed": f"{record.min_workers} to {record.max_workers}",
    }


def _show(manager: StreamManager, scope: str, name: str) -> Row:
    record = _record(manager, scope, name)
    return {"function": record.name, "stream": record.stream} | _definition(record) | {"stopped": record.is_stopped}


def _status(manager: StreamManager, scope: str, name: str) -> Row:
    record = _record(manager, scope, name)
    row, instances = _row(manager, scope, record)
    counts = {field: getattr(record.counts, field) for field in ("outputs", "failures", "gaps")}
    return row | _definition(record) | counts | {"last_error": record.last_error} | instances


def _stop(manager: StreamManager, scope: str, name: str) -> None:
    thread, progress = _progress(manager, scope, name)
    thread.run(progress.stop())


def _check_stopped(manager: StreamManager, scope: str, name: str) -> None:
    thread, progress = _progress(manager, scope, name)
    with suppress(ProtocolError):  # unreadable records can be deleted
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
    columns=["function", "stream", "workers", "events_per_s", "events", "unread_bytes", "retries", "dead_letters"],
    rows=_rows,
    empty="No functions in scope {scope}: start one with `nadi function run`.",
    show=_show,
    status=_status,
    stop=_stop,
    delete=_delete,
    find=_check_stopped,
    question=", its reader group and its counters? If run again, it starts over.",
).app()


_OPTIONS = {
    "name": option(str, "Name of the function and its reader group. (default: made from stream and handler)"),
    "start": option(Literal["head", "tail"], "Start of a new function. (default: head)", "--from"),
    "min_workers": option(int, "Workers kept while idle. (default: 0)", "--min"),
    "max_workers": option(int, "Maximum number of workers, one per segment. (default: 16)", "--max"),
    "idle_s": option(float, "Seconds until idle workers are stopped. (default: 60)", "--idle"),
    "batch_events": option(int, "Maximum events per batch. (default: 100)", "--batch"),
    "batch_ms": option(int, "Milliseconds to wait for a full batch. (default: 0)"),
    "timeout_s": option(float, "Timeout of a call in seconds. (default: 60)", "--timeout"),
    "memory_mib": option(int, "Memory limit of a handler's process. (default: unlimited)"),
    "retries": option(int, "Retries after the first attempt. (default: 5)"),
    "retry_first_s": option(float, "First pause between attempts in seconds. (default: 0.1)", "--retry-first"),
    "retry_longest_s": option(float, "Longest pause between attempts in seconds. (default: 30)", "--retry-longest"),
    "dead_letters": DeadLetters,
    "output": option(str, "Stream for the handler's results."),
    "delivery": option(
        Literal["at-most-once", "at-least-once", "exactly-once"],
        "Delivery guarantee on failures. (default: at-least-once)",
    ),
    "key_field": option(str, "Field of JSON events that contains the routing key."),
    "skip_damage": option(bool, "Continue after damaged data.", "--skip-damage"),
}
_OF_TARGETS = {
    "mode": option(Literal["binary", "structured", "batched"], "Form of the CloudEvents. (default: binary)"),
    "header": option(list[str], f"HTTP header `Name: value`. ${AUTHORIZATION} sets Authorization."),
    "event_type": option(str, "Type of the CloudEvents. (default: nadi.event)"),
    "content_type": option(str, "Content type of their data. (default: application/octet-stream)"),
    "target_trust_store": option(str, "PEM file with certificates to trust for the target."),
}


@function_app.command("run")
@taking(_OPTIONS | _OF_TARGETS)
def run_function(
    handler: Annotated[str | None, typer.Argument(help="`module:function` or `file.py:function`.")] = None,
    scope: Annotated[str | None, typer.Option(help="Scope of the stream.")] = None,
    stream: Annotated[str | None, typer.Option(help="Stream that triggers the function.")] = None,
    target: Annotated[str | None, typer.Option(help="URL to post CloudEvents to, instead of a handler.")] = None,
    exactly_once: Annotated[bool, typer.Option("--exactly-once", help="Same as --delivery exactly-once.")] = False,
    controller: Controller = DEFAULT_URI,
    trust_store: TrustStore = None,
    **given: Any,
) -> None:
    """Run a function until Ctrl-C. The number of workers follows the stream's segments."""
    from nadi.functions.definition import Function, function_of
    from nadi.functions.handlers.address import TargetAddress
    from nadi.functions.supervisor import run

    choose_one(exactly_once=exactly_once, delivery=given["delivery"] not in (None, "exactly-once"))
    if exactly_once:
        given["delivery"] = "exactly-once"
    given = {name: value for name, value in given.items() if value not in (None, [])}
    options: Any = {name: value for name, value in given.items() if name in _OPTIONS}
    if target is None:
        unused = [f"--{name.replace('_', '-')}" for name in _OF_TARGETS if name in given]
        if unused:
            raise InvalidArgumentError(f"{', '.join(unused)} can't be used without --target")
        if handler is None:
            raise InvalidArgumentError("no handler given: name a `module:function`, or use --target URL")
        function = function_of(handler, scope, stream, options)
    elif handler is not None or scope is None or stream is None:
        raise InvalidArgumentError("--target needs --scope and --stream, and excludes a handler")
    else:
        authorization = os.environ.get(AUTHORIZATION)
        headers = {"Authorization": authorization} if authorization else {}
        for header in given.pop("header", ()):
            key, colon, value = header.partition(":")
            if not colon:
                raise InvalidArgumentError(f"invalid --header {header!r}: use `Name: value`")
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
    redo: Annotated[bool, typer.Option("--redo", help="Process their events again instead.")] = False,
) -> None:
    """Commit a stopped function's recorded outputs, and discard those whose commit can't be determined.

    `nadi function run` reports when this is needed.
    """
    import logging

    from nadi.functions.writing import TransactionWriters, settle_all

    _check_stopped(manager, scope, name)

    async def commit_or_discard(core: Any) -> int:
        group = await core.reader_group_manager(scope).get_reader_group(name)
        for reader in await group.online_readers():  # none of them is alive
            await group.reader_offline(reader)
        log = logging.getLogger("nadi.functions")
        return await settle_all(group, TransactionWriters(core), log, on_unknown_commit="redo" if redo else "forget")

    say(f"discarded {awaited(manager, commit_or_discard)} outputs of function {name}")


# --- processors ------------------------------------------------------------------------------------------


def _processors(manager: StreamManager, scope: str) -> Any:
    from nadi.process.processor import processors_of

    positions, unreadable = awaited(manager, lambda core: processors_of(core, scope).all())
    return [_positions(name, record) for name, record in positions.items()], unreadable


def _positions(name: str, positions: Positions) -> Row:
    """name: STREAM/NAME."""
    return {
        "processor": name,
        "events": positions.events,
        "dead_letters": positions.dead_letters,
        "gaps": positions.gaps,
        "stopped": positions.is_stopped,
    }


def _processor_function(verb: str) -> Any:
    """Return `status`, `stop` or `delete` of `nadi.process` as a command's function."""

    def call(manager: StreamManager, scope: str, name: str) -> Any:
        from nadi import process

        stream, _, own_name = name.partition("/")
        if not stream or not own_name:
            raise InvalidArgumentError(f"{name!r} is not STREAM/NAME, such as meters/p")
        return awaited(manager, lambda core: getattr(process, verb)(core, scope, stream, own_name))

    return call


def _processor_status(manager: StreamManager, scope: str, name: str) -> Row:
    status = _processor_function("status")(manager, scope, name)
    row = _positions(name, status.positions) | {"cut": str(status.reached), "lag_bytes": status.lag_bytes}
    return row | processes("worker", status.workers)


processor_app = Resource(
    noun="processor",
    names={"scope": Scope, "name": Annotated[str, typer.Argument(help="The processor as STREAM/NAME.")]},
    columns=["processor", "events", "dead_letters", "gaps", "stopped"],
    rows=_processors,
    empty="No processors in scope {scope}: `nadi.process.run` starts one.",
    status=_processor_status,
    stop=_processor_function("stop"),
    delete=_processor_function("delete"),
    question=" and its positions? If run again, it starts over.",
).app()
