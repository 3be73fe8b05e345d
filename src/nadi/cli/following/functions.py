"""`nadi function`: run functions that streams trigger, and look at them."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from nadi.cli.bookmarks import Scope
from nadi.cli.printing import Form, errors_told, say, show, show_with
from nadi.cli.session import Controller, TrustStore, Yes, formed
from nadi.defaults import DEFAULT_URI

if TYPE_CHECKING:
    from nadi.client.aio import StreamManager, Unreadable
    from nadi.functions.handlers.address import Target
    from nadi.functions.progress import FunctionRecord

T = TypeVar("T")
Name = Annotated[str, typer.Argument(help="The function's name.")]
AUTHORIZATION = "NADI_TARGET_AUTHORIZATION"
function_app = typer.Typer(help="Functions that streams trigger: run, list, show.", no_args_is_help=True)


@function_app.command("run")
def run_function(
    handler: Annotated[str | None, typer.Argument(help="`module:function` or `file.py:function`.")] = None,
    scope: Annotated[str | None, typer.Option(help="The scope of the stream.")] = None,
    stream: Annotated[str | None, typer.Option(help="The stream that triggers it.")] = None,
    name: Annotated[str | None, typer.Option(help="Its name, and that of its reader group.")] = None,
    start: Annotated[
        Literal["head", "tail"] | None, typer.Option("--from", help="Where a new function begins: at the head.")
    ] = None,
    min_workers: Annotated[int | None, typer.Option("--min", help="Workers kept while nothing is unread: 0.")] = None,
    max_workers: Annotated[int | None, typer.Option("--max", help="Most workers, one a segment: 16.")] = None,
    idle_s: Annotated[float | None, typer.Option("--idle", help="Seconds until spare workers are stopped: 60.")] = None,
    batch_events: Annotated[int | None, typer.Option("--batch", help="Most events of a batch: 100.")] = None,
    batch_ms: Annotated[int | None, typer.Option(help="How long a batch waits to be full: 0 ms.")] = None,
    timeout_s: Annotated[float | None, typer.Option("--timeout", help="Seconds that a call may take: 60.")] = None,
    memory_mib: Annotated[int | None, typer.Option(help="Memory of a handler's process: unlimited.")] = None,
    retries: Annotated[int | None, typer.Option(help="After the first attempt at an event: 5.")] = None,
    retry_first_s: Annotated[float | None, typer.Option("--retry-first", help="First pause: 0.1 s.")] = None,
    retry_longest_s: Annotated[float | None, typer.Option("--retry-longest", help="Longest pause: 30 s.")] = None,
    dead_letters: Annotated[
        str | None, typer.Option("--dead-letter", help="Stream for events that are given up; else it stops there.")
    ] = None,
    output: Annotated[str | None, typer.Option(help="Stream for what the handler returns.")] = None,
    delivery: Annotated[
        Literal["at-most-once", "at-least-once", "exactly-once"] | None,
        typer.Option(help="How often an event takes effect when something dies: at-least-once."),
    ] = None,
    exactly_once: Annotated[
        bool, typer.Option("--exactly-once", help="The same as --delivery exactly-once.", show_default=False)
    ] = False,
    key_field: Annotated[str | None, typer.Option(help="Field of JSON events that has the routing key.")] = None,
    skip_damage: Annotated[
        bool | None, typer.Option("--skip-damage", help="Go on after damaged data.", show_default=False)
    ] = None,
    target: Annotated[str | None, typer.Option(help="Post CloudEvents to this URL, without a handler.")] = None,
    mode: Annotated[
        Literal["binary", "structured", "batched"] | None, typer.Option(help="Form of the CloudEvents: binary.")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option(help=f"`Name: value` for the target; Authorization also from {AUTHORIZATION}.")
    ] = None,
    event_type: Annotated[str | None, typer.Option(help="The CloudEvents' type: nadi.event.")] = None,
    content_type: Annotated[str | None, typer.Option(help="Of their data: application/octet-stream.")] = None,
    target_trust_store: Annotated[str | None, typer.Option(help="PEM file of certificates, for the target.")] = None,
    controller: Controller = DEFAULT_URI,
    trust_store: TrustStore = None,
) -> None:
    """Run a function until Ctrl-C: its workers follow the stream's segments."""
    given = dict(locals())
    from nadi.errors import InvalidArgumentError
    from nadi.functions.definition import Function, FunctionOptions, function_of
    from nadi.functions.running import run

    given = {name: value for name, value in given.items() if value is not None}
    options: Any = {name: given[name] for name in FunctionOptions.__annotations__ if name in given}
    about_target = {
        "mode": mode,
        "header": header,
        "event-type": event_type,
        "content-type": content_type,
        "target-trust-store": target_trust_store,
    }
    with errors_told():
        if exactly_once:
            if delivery not in (None, "exactly-once"):
                raise InvalidArgumentError(f"--exactly-once and --delivery {delivery} exclude each other: give one")
            options["delivery"] = "exactly-once"
        if target is None:
            useless = [f"--{option}" for option, value in about_target.items() if value]
            if useless:
                raise InvalidArgumentError(f"{', '.join(useless)}: of no use without --target")
            if handler is None:
                raise InvalidArgumentError("say what handles the events: `module:function`, or --target URL")
            function = function_of(handler, scope, stream, options)
        elif handler is not None or scope is None or stream is None:
            raise InvalidArgumentError("a target needs --scope and --stream, and no handler")
        else:
            service = _target(target, mode, header or [], event_type, content_type, target_trust_store)
            function = Function(scope=scope, stream=stream, target=service, **options)
        run(function, controller, trust_store=trust_store)


def _target(
    url: str,
    mode: Literal["binary", "structured", "batched"] | None,
    headers: list[str],
    event_type: str | None,
    content_type: str | None,
    trust_store: str | None,
) -> Target:
    from nadi.errors import InvalidArgumentError
    from nadi.functions.handlers.address import Target

    named = {}
    if authorization := os.environ.get(AUTHORIZATION):
        named["Authorization"] = authorization
    for header in headers:
        name, colon, value = header.partition(":")
        if not colon:
            raise InvalidArgumentError(f"--header is `Name: value`, not {header!r}")
        named[name.strip()] = value.strip()
    more = {"mode": mode, "event_type": event_type, "content_type": content_type}
    chosen: Any = {option: value for option, value in more.items() if value is not None}
    return Target(url, headers=named, trust_store=trust_store, **chosen)


@function_app.command("list")
@formed
def list_functions(
    scope: Scope, form: Form = Form.TABLE, controller: Controller = DEFAULT_URI, trust_store: TrustStore = None
) -> None:
    """List a scope's functions: workers, events a second, what is unread, retries, dead letters."""

    async def ask(manager: StreamManager) -> tuple[list[Unreadable], list[dict[str, Any]]]:
        from nadi.functions.progress import functions_with_unreadable

        found, unreadable = await functions_with_unreadable(manager, scope)
        rows = [await _row(manager, scope, record) for _, record in sorted(found.items())]
        return unreadable, rows

    columns = ["function", "stream", "workers", "events/s", "events", "unread bytes", "retries", "dead letters"]
    empty = f"Scope {scope} has no functions yet: run one with `nadi function run`."
    show_with(*_asked(controller, trust_store, ask), columns, form=form, empty=empty)


@function_app.command("show")
@formed
def show_function(
    scope: Scope,
    name: Name,
    form: Form = Form.TABLE,
    controller: Controller = DEFAULT_URI,
    trust_store: TrustStore = None,
) -> None:
    """Show a function: its instances and workers, what they have done, and the last error."""

    async def ask(manager: StreamManager) -> dict[str, Any]:
        from nadi.functions.instances import running_instances
        from nadi.functions.progress import StoredProgress

        record = await StoredProgress(manager, scope, name).record.get()
        row = await _row(manager, scope, record)
        counts = record.counts
        row |= {
            "handled by": record.handled_by,
            "output": record.output or "",
            "delivery": record.delivery,
            "dead-letter stream": record.dead_letters or "",
            "workers allowed": f"{record.min_workers} to {record.max_workers}",
            "outputs": counts.outputs,
            "failures": counts.failures,
            "gaps": counts.gaps,
            "last error": record.newest_error,
        }
        alive = running_instances(record, _now_ms())
        for at, (name_of, one) in enumerate(record.instances.items(), 1):
            gone = "" if name_of in alive else ", gone"
            age_s = max(_now_ms() - one.updated_ms, 0) / 1000
            row[f"instance {at}"] = (
                f"{one.host}, process {one.pid}, {one.status}{gone}, reported {age_s:.0f} s ago: "
                f"{', '.join(one.workers) or 'no workers'}"
            )
        return row

    row = _asked(controller, trust_store, ask)
    if form is not Form.TABLE:
        show([row], [], form=form, empty="")
    else:
        show([{"": key, " ": value} for key, value in row.items()], ["", " "], form=Form.TABLE, empty="")


@function_app.command("forget")
def forget(
    scope: Scope,
    name: Name,
    redo: Annotated[bool, typer.Option("--redo", help="Handle their events again.")] = False,
    controller: Controller = DEFAULT_URI,
    trust_store: TrustStore = None,
) -> None:
    """Forget recorded outputs of which the server no longer knows whether they were committed, and commit the others.
    The function, stopped, says when that is needed."""

    async def ask(manager: StreamManager) -> int:
        import logging

        from nadi.functions.writing import TransactionWriters, settle_all

        await _check_stopped(manager, scope, name)
        group = await manager.reader_group_manager(scope).get_reader_group(name)
        for reader in await group.online_readers():  # all dead
            await group.reader_offline(reader)
        if_unknown: Literal["redo", "forget"] = "redo" if redo else "forget"
        log = logging.getLogger("nadi.functions")
        return await settle_all(group, TransactionWriters(manager), log, if_unknown=if_unknown)

    say(f"forgot {_asked(controller, trust_store, ask)} outputs of function {name}")


@function_app.command("delete")
def delete(
    scope: Scope, name: Name, yes: Yes = False, controller: Controller = DEFAULT_URI, trust_store: TrustStore = None
) -> None:
    """Delete a stopped function's reader group, and with it its positions and counters."""
    if not yes:
        typer.confirm(f"Delete function {name}? Run again, it begins anew.", abort=True)

    async def ask(manager: StreamManager) -> None:
        from nadi.errors import ProtocolError

        with suppress(ProtocolError):  # what can't be read can be deleted
            await _check_stopped(manager, scope, name)
        await manager.reader_group_manager(scope).delete_reader_group(name)

    _asked(controller, trust_store, ask)
    say(f"deleted function {name}")


def _asked(controller: str, trust_store: str | None, ask: Callable[[StreamManager], Awaitable[T]]) -> T:
    import asyncio

    from nadi.client.aio import StreamManager

    async def asking() -> T:
        async with StreamManager(controller, trust_store=trust_store) as manager:
            return await ask(manager)

    with errors_told():
        return asyncio.run(asking())


async def _check_stopped(manager: StreamManager, scope: str, name: str) -> None:
    from nadi.errors import ConflictError
    from nadi.functions.instances import running_instances
    from nadi.functions.progress import StoredProgress

    record = await StoredProgress(manager, scope, name).record.get()
    if running := running_instances(record, _now_ms()):
        hosts = ", ".join(sorted({one.host for one in running.values()}))
        raise ConflictError(f"function {name} is running: stop it first, on {hosts}")


async def _row(manager: StreamManager, scope: str, record: FunctionRecord) -> dict[str, Any]:
    from nadi.functions.instances import running_instances

    alive = running_instances(record, _now_ms()).values()
    return {
        "function": record.name,
        "stream": record.stream,
        "workers": sum(len(one.workers) for one in alive),
        "events/s": round(sum(one.events_per_s for one in alive), 1),
        "events": record.counts.events,
        "unread bytes": await _unread_bytes(manager, scope, record.name),
        "retries": record.counts.retries,
        "dead letters": record.counts.dead_letters,
    }


async def _unread_bytes(manager: StreamManager, scope: str, name: str) -> int | None:
    """None where nothing can be read at the function's place any more: its stream was deleted, or made anew."""
    from nadi.errors import InvalidArgumentError, NotFoundError

    try:
        return await (await manager.reader_group_manager(scope).get_reader_group(name)).unread_bytes()
    except (NotFoundError, InvalidArgumentError):
        return None


def _now_ms() -> int:
    return int(time.time() * 1000)
