"""What commands share: the server's address, one client for the command, and the form in which rows are printed.

A `connected` command does its work with the client and hands rows to `printing.show`. Errors of nadi end it with their
message and exit code 1. A command that has a `form` gets the options that choose it; one that isn't `connected` is
`formed` for that.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

from nadi.cli.printing import Form, errors_told
from nadi.defaults import DEFAULT_URI
from nadi.errors import InvalidArgumentError

Controller = Annotated[
    str, typer.Option(envvar="NADI_CONTROLLER", help="The controller, as tcp://host:port or tls://host:port.")
]
TrustStore = Annotated[
    str | None, typer.Option(envvar="NADI_TRUST_STORE", help="PEM file of certificates to trust, with tls://.")
]
Output = Annotated[Form | None, typer.Option("--output", "-o", help="Print so. [default: table]", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="The same as -o json: a single document.")]
Patience = Annotated[
    float | None,
    typer.Option(
        envvar="NADI_PATIENCE",
        help="Seconds to wait for each of the server's answers. [default: 30, and 130 for changes]",
        show_default=False,
        min=0.1,
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")]


def connected(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command a client as its first argument, and options that say of which server."""

    command = formed(command)

    def run(
        *,
        controller: Controller = DEFAULT_URI,
        trust_store: TrustStore = None,
        patience: Patience = None,
        **given: Any,
    ) -> None:
        from nadi.client import StreamManager

        with errors_told(), StreamManager(controller, trust_store=trust_store, timeout=patience) as manager:
            command(manager, **given)

    _, *own = _parameters(command)
    *server, _ = inspect.signature(run, eval_str=True).parameters.values()
    return _with_options(run, command, [*own, *server])


def formed(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command that has a `form` the options for it, in its place; leave others as they are."""
    own = _parameters(command)
    if all(one.name != "form" for one in own):
        return command

    def run(*client: object, output: Output = None, as_json: AsJson = False, **given: Any) -> None:
        with errors_told():
            if as_json and output not in (None, Form.JSON):
                raise InvalidArgumentError(f"--json and -o {output} exclude each other: choose one")
        command(*client, form=Form.JSON if as_json else output or Form.TABLE, **given)

    _, *options, _ = inspect.signature(run, eval_str=True).parameters.values()
    shown = [one for each in own for one in (options if each.name == "form" else [each])]
    return _with_options(run, command, shown)


def _parameters(command: Callable[..., None]) -> list[inspect.Parameter]:
    return list(inspect.signature(command, locals={"StreamManager": object}, eval_str=True).parameters.values())


def _with_options(
    run: Callable[..., None], command: Callable[..., None], parameters: list[inspect.Parameter]
) -> Callable[..., None]:
    """`run` with the command's name and words, and these parameters."""
    wraps(command)(run)
    by_name = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters]
    run.__signature__ = inspect.Signature(by_name)  # type: ignore[attr-defined]
    run.__annotations__ = {}  # the signature says it all
    return run
