"""Shared parts of commands: the client, output formats, error messages and the commands common to all resources.

A command requests what it needs by parameter name: `manager` is a client of the server chosen by its options, and
`form` is the output format. A `Resource` describes a kind of thing and generates `list`, `show`, `status`, `stop`
and `delete`; the resource's module adds `create`, `run` and others.
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
from nadi.cli.printing import Form, confirm, report_deleted, reporting_errors, say, show, show_fields
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
    """Add the options behind `manager` and `form` to a command; nadi's errors end it with their message."""
    parameters = _parameters(command)
    needs = {parameter.name for parameter in parameters} & {"manager", "form"}

    @wraps(command)
    def run(**arguments: Any) -> None:
        with reporting_errors(), ExitStack() as within:
            if "form" in needs:
                output, as_json = arguments.pop("output"), arguments.pop("as_json")
                choose_one(is_json=as_json, output=output not in (None, Form.JSON))
                arguments["form"] = Form.JSON if as_json else output or Form.TABLE
            if "manager" in needs:
                from nadi.client import StreamManager

                server, trust_store, timeout = (arguments.pop(option.name) for option in _SERVER)
                client = StreamManager(server, trust_store=trust_store, timeout=timeout)
                arguments["manager"] = within.enter_context(client)
            command(**arguments)

    shown = [
        option
        for parameter in parameters
        for option in (_FORM if parameter.name == "form" else [parameter])
        if parameter.name != "manager"
    ]
    shown += _SERVER if "manager" in needs else []
    by_name = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in shown]
    run.__signature__ = inspect.Signature(by_name)  # type: ignore[attr-defined]
    run.__annotations__ = {}  # __signature__ replaces them
    paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    run.__doc__ = "\n\n".join(" ".join(text.split()) for text in paragraphs)  # help keeps line breaks otherwise
    return run


def option(kind: Any, about: str, *names: str, **more: Any) -> Any:
    """Return the annotation of an optional option, for `taking`."""
    return Annotated[kind | None, typer.Option(*names, help=about, **more)]


def _taking(
    command: Callable[..., None], parameters: Iterable[Parameter], options: Mapping[str, Any]
) -> Callable[..., None]:
    shown = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in parameters]
    shown += [_parameter(name, annotation, None) for name, annotation in options.items()]
    command.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    return command


def taking(options: Mapping[str, Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace a command's `**given` by these options, each None unless given."""
    return lambda command: _taking(command, _parameters(command)[:-1], options)


def awaited(manager: StreamManager, work: Callable[[Any], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine on the client's asyncio interface and return its result."""
    from nadi.client.blocking.face import inside

    thread, core = inside(manager)
    return thread.run(work(core))


def choose_one(**options: Any) -> None:
    """Raise InvalidArgumentError if more than one of these options is given; `is_json` stands for --json."""
    given = _given(options)
    if len(given) > 1:
        raise InvalidArgumentError(f"{' and '.join(given)} can't be combined: choose one")


def check_absent(why: str, **options: Any) -> None:
    """Raise InvalidArgumentError if one of these options is given; why: such as "can't be used with --x"."""
    for name in _given(options):
        raise InvalidArgumentError(f"{name} {why}")


def _given(options: Mapping[str, Any]) -> list[str]:
    return [f"--{name.removeprefix('is_').replace('_', '-')}" for name, value in options.items() if value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """A kind of named thing.

    noun: as in "deleted reader group home/billing". names: the arguments that identify one; `list` takes all but the
    last. columns: of the table that `list` prints. rows: function of (manager, *those arguments, **filters) that
    returns rows and unreadable records; for_people: maps a row for the table. empty: the message without rows.
    show, status: functions that return one resource's fields; stop: ends its processes. delete: returns False if the
    name doesn't exist; question: the end of its confirmation, such as "? Its table stays."; find: raises if there is
    nothing to confirm, `show` or `status` by default; stays: names what isn't deleted; options: extra options of
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
    find: Callable[..., Any] | None = None
    question: str = ""
    stays: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    def app(self) -> typer.Typer:
        """Return its commands; its module adds others."""
        app = typer.Typer(no_args_is_help=True)
        self.add_to(app)
        return app

    def add_to(self, app: typer.Typer) -> None:
        noun, names, within = self.noun, self.names, dict(list(self.names.items())[:-1])
        form = {"form": Form}
        status = f"Show the position of a {noun} and its workers."
        stop = f"Stop all processes of a {noun}; `run` resumes it."
        commands: dict[str, tuple[Any, Callable[..., None], str, Mapping[str, Any], Mapping[str, Any]]] = {
            "list": (self.rows, self._list, f"List {self._plural}.", within | form, self.filters),
            "show": (self.show, self._fields, f"Show a {noun}.", {**names, **form}, {}),
            "status": (self.status, self._fields, status, {**names, **form}, {}),
            "stop": (self.stop, self._stop, stop, names, {}),
            "delete": (self.delete, self._delete, f"Delete a {noun}{self.stays}.", names, {"yes": Yes, **self.options}),
        }
        for verb, (source, run, about, arguments, options) in commands.items():
            if source is not None:
                parameters = [_parameter(*item) for item in {"manager": object, **arguments}.items()]
                app.command(verb, help=about)(_taking(partial(run, source), parameters, options))

    def _list(self, rows: Callable[..., Any], manager: StreamManager, form: Form, **given: Any) -> None:
        records, unreadable = rows(manager, **given)
        description = f"matching {self._plural}" if self.filters else self._plural
        empty = (self.empty or f"No {description} in scope {{scope}}.").format(**given)
        shown = map(self.for_people, records) if form is Form.TABLE else records
        show(list(shown), self.columns, form=form, empty=empty, unreadable=unreadable)

    def _fields(self, fields: Callable[..., Row], manager: StreamManager, form: Form, **given: Any) -> None:
        show_fields(fields(manager, **given), form)

    def _stop(self, stop: Callable[..., Any], manager: StreamManager, **given: Any) -> None:
        stop(manager, **given)
        say(f"stopped {self._name(given)}")

    def _delete(self, delete: Callable[..., Any], manager: StreamManager, yes: bool = False, **given: Any) -> None:
        name = self._name(given)
        if self.question and not yes:
            if find := self.find or self.show or self.status:
                with suppress(ProtocolError):  # unreadable records can be deleted
                    find(manager, **given)
            confirm(f"Delete {name}{self.question}")
        report_deleted(delete(manager, **given) is not False, f"deleted {name}{self.stays}", name)

    def _name(self, given: Mapping[str, Any]) -> str:
        return f"{self.noun} {'/'.join(given[name] for name in self.names)}"

    @property
    def _plural(self) -> str:
        return f"{self.noun[:-1]}ies" if self.noun.endswith("y") else f"{self.noun}{'e' * self.noun.endswith('x')}s"
