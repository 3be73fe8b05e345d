"""What the commands that talk to a server share: its address, and one client for the command.

A `connected` command does its work with the client and hands rows to `printing.show`. Errors of nadi end it with their
message and exit code 1.
"""

from __future__ import annotations

import inspect
import socket
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

from nadi.cli.printing import errors_told
from nadi.defaults import DEFAULT_URI

Controller = Annotated[
    str, typer.Option(envvar="NADI_CONTROLLER", help="The controller, as tcp://host:port or tls://host:port.")
]
TrustStore = Annotated[
    str | None, typer.Option(envvar="NADI_TRUST_STORE", help="PEM file of certificates to trust, with tls://.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, a single document.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")]


def connected(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command a client as its first argument, and options that say of which server."""

    def run(*, controller: Controller = DEFAULT_URI, trust_store: TrustStore = None, **given: Any) -> None:
        from nadi.client import StreamManager

        with errors_told():
            tell_if_nobody_listens(controller)
            with StreamManager(controller, trust_store=trust_store) as manager:
                command(manager, **given)

    _, *own = inspect.signature(command, locals={"StreamManager": object}, eval_str=True).parameters.values()
    *server, _ = inspect.signature(run, eval_str=True).parameters.values()
    wraps(command)(run)
    run.__signature__ = inspect.Signature([*own, *server])  # type: ignore[attr-defined]
    run.__annotations__ = {}  # the signature says it all
    return run


def tell_if_nobody_listens(controller: str) -> None:
    """Say on standard error that the command waits for a server, which may be about to start, as clients do."""
    from nadi.client.control.calls import DEFAULT_TIMEOUT_S
    from nadi.client.control.security import split_uri

    address, _ = split_uri(controller)
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=1).close()
    except ConnectionRefusedError:
        typer.echo(
            f"nobody listens at {address} (nadi up starts a server): trying for {DEFAULT_TIMEOUT_S:.0f} s", err=True
        )
    except OSError:
        pass  # slow, or no such host: the client says what it is
