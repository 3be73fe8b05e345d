"""What the commands that talk to a server share: its address, and one client for the command.

A command does its work in `with client(uri) as manager` and hands rows to `printing.show`. Errors of nadi end the
command with their message and exit code 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from nadi.cli.printing import failure
from nadi.errors import NadiError

if TYPE_CHECKING:
    from nadi.client import StreamManager

Controller = Annotated[
    str,
    typer.Option(
        "--controller", envvar="NADI_CONTROLLER", help="The controller, as tcp://host:port or tls://host:port."
    ),
]
TrustStore = Annotated[
    str | None, typer.Option(envvar="NADI_TRUST_STORE", help="PEM file of certificates to trust, with tls://.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one document for the whole answer.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")]


@contextmanager
def client(uri: str, trust_store: str | None = None) -> Iterator[StreamManager]:
    """A client of that controller; what goes wrong with it ends the command, in words."""
    from nadi.client import StreamManager

    try:
        with StreamManager(uri, trust_store=trust_store) as manager:
            yield manager
    except NadiError as error:
        raise failure(error) from None
