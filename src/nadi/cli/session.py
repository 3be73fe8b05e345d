"""What all commands get: the client, the form of rows and the error messages; and the commands that all resources have.

A command names what it needs among its parameters: `manager`, a client of the server that its options then choose, and
`form`, how it prints rows. A `Resource` describes a kind of thing, of which it makes `list`, `show`, `status`, `stop`
and `delete`; its module adds `create`, `run` and what else there is.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial, wraps
from inspect import Parameter
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from nadi.cli.options import AsJson, Controller, Output, Patience, TrustStore, Yes
from nadi.cli.printing import Form, confirm, errors_told, say, say_gone, show, show_fields
from nadi.defaults import DEFAULT_URI
from nadi.errors import InvalidArgumentError, ProtocolError

if TYPE_CHECKING:
    from nadi.client import StreamManager, Unreadable

Row = dict[str, Any]
T = TypeVar("T")


def _parameter(name: str, annotation: Any, default: Any = Parameter.empty) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def _parameters(command: Callable[..., None]) -> list[Parameter]:
    return list(inspect.signature(command, locals={"StreamManager": object}, eval_str=True).parameters.values())


_FORM = [_parameter("output", Output, None), _parameter("as_json", AsJson, False)]
_SERVER = [
    _parameter("controller", Controller, DEFAULT_URI),
    _parameter("trust_store", TrustStore, None),
    _parameter("patience", Patience, None),
]


def prepared(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the options for what its parameters name. Errors of nadi end it with their message."""
    own = _parameters(command)
    needs = {one.name for one in own} & {"manager", "form"}

    @wraps(command)
    def run(**given: Any) -> None:
        with errors_told(), ExitStack() as within:
            if "form" in needs:
                output, as_json = given.pop("output"), given.pop("as_json")
                choose_one(is_json=as_json, output=output not in (None, Form.JSON))
                given["form"] = Form.JSON if as_json else output or Form.TABLE
            if "manager" in needs:
                from nadi.client import StreamManager

                server, trust_store, timeout = (given.pop(option.name) for option in _SERVER)
                client = StreamManager(server, trust_store=trust_store, timeout=timeout)
                given["manager"] = within.enter_context(client)
            command(**given)

    shown = [option for one in own for option in (_FORM if one.name == "form" else [one]) if one.name != "manager"]
    shown += _SERVER if "manager" in needs else []
    by_name = [one.replace(kind=Parameter.KEYWORD_ONLY) for one in shown]
    run.__signature__ = inspect.Signature(by_name)  # type: ignore[attr-defined]
    run.__annotations__ = {}  # the signature says it all
    return run


def option(kind: Any, about: str, *names: str, **more: Any) -> Any:
    """An option that may be left out, for `taking`."""
    return Annotated[kind | None, typer.Option(*names, help=about, **more)]


def _taking(command: Callable[..., None], own: Iterable[Parameter], options: Mapping[str, Any]) -> Callable[..., None]:
    shown = [one.replace(kind=Parameter.KEYWORD_ONLY) for one in own]
    shown += [_parameter(*one, None) for one in options.items()]
    command.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    return command


def taking(options: Mapping[str, Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Have a command's `**given` be these options, each None where it isn't given."""
    return lambda command: _taking(command, _parameters(command)[:-1], options)


def awaited(manager: StreamManager, work: Callable[[Any], Coroutine[Any, Any, T]]) -> T:
    """The result of what is done with the client's asyncio face."""
    from nadi.client.blocking.face import inside

    thread, core = inside(manager)
    return thread.run(work(core))


def choose_one(**options: Any) -> None:
    """InvalidArgumentError if several of these options, `is_json` for --json, say, are given."""
    given = _given(options)
    if len(given) > 1:
        raise InvalidArgumentError(f"{' and '.join(given)} exclude each other: choose one")


def check_absent(why: str, **options: Any) -> None:
    """InvalidArgumentError if one of these options is given, which "has no effect with --x", say."""
    for name in _given(options):
        raise InvalidArgumentError(f"{name} {why}")


def _given(options: Mapping[str, Any]) -> list[str]:
    return [f"--{name.removeprefix('is_').replace('_', '-')}" for name, value in options.items() if value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """A kind of thing that has a name.

    noun: as in "deleted reader group home/billing". names: the arguments that name one; `list` takes all but the last.
    columns: of the table that `list` prints. rows: of (manager, *those arguments, **filters), rows and records that
    can't be read; for_people: a row as the table has it. empty: printed without any.
    show, status: the fields of one, printed below each other; status is of a process, which `stop` ends.
    delete: its result is False if nothing had that name. question: the end of the one that is asked before, such as
    "? Its table stays."; find: raises where there is nothing to ask about; stays: what isn't deleted. options: of
    `delete`.
    """

    noun: str
    names: Mapping[str, Any]
    columns: Sequence[str] = ()
    rows: Callable[..., tuple[Iterable[Row], Sequence[Unreadable]]] | None = None
    filters: Mapping[str, Any] = field(default_factory=dict)
    empty: str = ""
    for_people: Callable[[Row], Row] = dict
    show: Callable[..., Row] | None = None
    status: Callable[..., Row] | None = None
    stop: Callable[..., Any] | None = None
    delete: Callable[..., Any] | None = None
    find: Callable[..., Any] = lambda *_, **__: None
    question: str = ""
    stays: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    def app(self) -> typer.Typer:
        """Its commands, to which its module adds others."""
        app = typer.Typer(no_args_is_help=True)
        self.add_to(app)
        return app

    def add_to(self, app: typer.Typer) -> None:
        noun, names, within = self.noun, self.names, dict(list(self.names.items())[:-1])
        form = {"form": Form}
        how_far = f"Show the position of a {noun} and its workers."
        ends = f"Have all that work at a {noun} end; `run` continues there."
        commands: dict[str, tuple[Any, Callable[..., None], str, Mapping[str, Any], Mapping[str, Any]]] = {
            "list": (self.rows, self._list, f"List {self._plural}.", within | form, self.filters),
            "show": (self.show, self._fields, f"Show a {noun}.", {**names, **form}, {}),
            "status": (self.status, self._fields, how_far, {**names, **form}, {}),
            "stop": (self.stop, self._stop, ends, names, {}),
            "delete": (self.delete, self._delete, f"Delete a {noun}{self.stays}.", names, {"yes": Yes, **self.options}),
        }
        for verb, (source, run, about, arguments, options) in commands.items():
            if source is not None:
                own = [_parameter(*one) for one in {"manager": object, **arguments}.items()]
                app.command(verb, help=about)(_taking(partial(run, source), own, options))

    def _list(self, rows: Callable[..., Any], manager: StreamManager, form: Form, **given: Any) -> None:
        found, unreadable = rows(manager, **given)
        such = f"such {self.noun}" if self.filters else self._plural
        empty = (self.empty or f"Scope {{scope}} has no {such}.").format(**given)
        shown = map(self.for_people, found) if form is Form.TABLE else found
        show(list(shown), self.columns, form=form, empty=empty, unreadable=unreadable)

    def _fields(self, fields: Callable[..., Row], manager: StreamManager, form: Form, **given: Any) -> None:
        show_fields(fields(manager, **given), form)

    def _stop(self, stop: Callable[..., Any], manager: StreamManager, **given: Any) -> None:
        stop(manager, **given)
        say(f"stopped {self._name(given)}")

    def _delete(self, delete: Callable[..., Any], manager: StreamManager, yes: bool = False, **given: Any) -> None:
        name = self._name(given)
        if self.question and not yes:
            with suppress(ProtocolError):  # an unreadable one can be deleted
                self.find(manager, **given)
            confirm(f"Delete {name}{self.question}")
        say_gone(delete(manager, **given) is not False, f"deleted {name}{self.stays}", name)

    def _name(self, given: Mapping[str, Any]) -> str:
        return f"{self.noun} {'/'.join(given[name] for name in self.names)}"

    @property
    def _plural(self) -> str:
        return f"{self.noun[:-1]}ies" if self.noun.endswith("y") else f"{self.noun}{'e' * self.noun.endswith('x')}s"
