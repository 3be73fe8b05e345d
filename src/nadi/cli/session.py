"""What all commands get: the client, the form of rows and the error messages; and the commands that all resources have.

A command names what it needs among its parameters: `manager`, a client of the server that its options then choose, and
`form`, how it prints rows. A `Resource` describes a kind of thing, of which it makes `list`, `show`, `status`, `stop`
and `delete`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import wraps
from inspect import Parameter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nadi.cli.options import AsJson, Controller, Output, Patience, TrustStore, Yes
from nadi.cli.printing import Form, errors_told, say, say_gone, show, show_fields
from nadi.defaults import DEFAULT_URI
from nadi.errors import InvalidArgumentError, ProtocolError

if TYPE_CHECKING:
    from nadi.client import StreamManager, Unreadable

Row = dict[str, Any]


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
                if as_json and output not in (None, Form.JSON):
                    raise InvalidArgumentError(f"--json and -o {output} exclude each other: choose one")
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


def taking(options: Mapping[str, Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Have a command's `**given` be these options, each None where it isn't given."""

    def add(command: Callable[..., None]) -> Callable[..., None]:
        *own, _ = _parameters(command)
        shown = [one.replace(kind=Parameter.KEYWORD_ONLY) for one in own]
        shown += [_parameter(*one, None) for one in options.items()]
        command.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
        return command

    return add


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
    find: Callable[..., Any] = lambda *_: None
    question: str = ""
    stays: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    def app(self) -> typer.Typer:
        """Its commands, to which its module adds others."""
        app = typer.Typer(no_args_is_help=True)
        self.add_to(app)
        return app

    def add_to(self, app: typer.Typer) -> None:
        noun, within = self.noun, dict(list(self.names.items())[:-1])
        if self.rows is not None:
            self._add(app, "list", f"List {self._plural}.", self._list, within, self.filters)
        if self.show is not None:
            self._add(app, "show", f"Show a {noun}.", self._show, self.names)
        if self.status is not None:
            self._add(app, "status", f"Show how far a {noun} is, and who works at it.", self._show, self.names)
        if self.stop is not None:
            self._add(
                app, "stop", f"Have all that work at a {noun} end; `run` continues there.", self._stop, self.names
            )
        if self.delete is not None:
            options = {**({"yes": Yes} if self.question else {}), **self.options}
            self._add(app, "delete", f"Delete a {noun}{self.stays}.", self._delete, self.names, options)

    @staticmethod
    def _add(
        app: typer.Typer,
        verb: str,
        about: str,
        run: Callable[..., None],
        names: Mapping[str, Any],
        options: Mapping[str, Any] | None = None,
    ) -> None:
        def command(**given: Any) -> None:
            run(**given)

        parameters = [_parameter("manager", object), *(_parameter(*one) for one in names.items())]
        parameters += [_parameter(*one, None) for one in (options or {}).items()]
        parameters += [_parameter("form", Form)] if verb in ("list", "show", "status") else []
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        app.command(verb, help=about)(command)

    def _list(self, manager: StreamManager, form: Form, **given: Any) -> None:
        assert self.rows is not None
        rows, unreadable = self.rows(manager, **given)
        such = f"such {self.noun}" if self.filters else self._plural
        empty = (self.empty or f"Scope {{scope}} has no {such}.").format(**given)
        shown = map(self.for_people, rows) if form is Form.TABLE else rows
        show(list(shown), self.columns, form=form, empty=empty, unreadable=unreadable)

    def _show(self, manager: StreamManager, form: Form, **given: Any) -> None:
        fields = self.show or self.status
        assert fields is not None
        show_fields(fields(manager, **given), form)

    def _stop(self, manager: StreamManager, **given: Any) -> None:
        assert self.stop is not None
        self.stop(manager, **given)
        say(f"stopped {self._name(given)}")

    def _delete(self, manager: StreamManager, yes: bool = False, **given: Any) -> None:
        assert self.delete is not None
        name = self._name(given)
        if self.question and not yes:
            with suppress(ProtocolError):  # an unreadable one can be deleted
                self.find(manager, *(given[key] for key in self.names))
            typer.confirm(f"Delete {name}{self.question}", abort=True)
        say_gone(self.delete(manager, **given) is not False, f"deleted {name}{self.stays}", name)

    def _name(self, given: Mapping[str, Any]) -> str:
        return f"{self.noun} {'/'.join(given[name] for name in self.names)}"

    @property
    def _plural(self) -> str:
        return f"{self.noun[:-1]}ies" if self.noun.endswith("y") else f"{self.noun}{'e' * self.noun.endswith('x')}s"
