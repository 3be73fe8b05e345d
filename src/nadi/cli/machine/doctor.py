"""`nadi doctor`: what is right and wrong with this machine, the data folder and the server, and what to do about it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nadi.cli.printing import Form, errors_told, show
from nadi.cli.session import TrustStore, formed
from nadi.defaults import DEFAULT_HOST, DEFAULT_STORE_PORT, DEFAULT_URI

Rest = Annotated[
    str | None,
    typer.Option(
        envvar="NADI_REST",
        help="The server's REST address. [default: what the controller says, else port 9091 of its host]",
        show_default=False,
    ),
]


@formed
def doctor(
    data: Annotated[
        Path | None,
        typer.Option(help="The data folder, or where it is to be. [default: nadi-data]", show_default=False),
    ] = None,
    controller: Annotated[
        str | None,
        typer.Option(
            envvar="NADI_CONTROLLER",
            help=f"The server that should be there. [default: see whether one is at {DEFAULT_URI}]",
            show_default=False,
        ),
    ] = None,
    rest: Rest = None,
    trust_store: TrustStore = None,
    form: Form = Form.TABLE,
) -> None:
    """Check this machine, the data folder's disk and the server, and say what to do; exits with code 1 if something is
    wrong.

    It writes to the disk for two seconds, to a file of its own.
    """
    from nadi.cli.machine import disk, programs, serving
    from nadi.cli.machine.finding import State

    with errors_told():
        where = serving.Addresses(
            controller or DEFAULT_URI,
            rest or serving.rest_beside(controller or DEFAULT_URI, trust_store),
            f"{DEFAULT_HOST}:{DEFAULT_STORE_PORT}",
            controller is not None,
            trust_store,
        )
        found = [*programs.looked_at(), *disk.looked_at(data or Path("nadi-data")), *serving.looked_at(where)]
    show([one.row() for one in found], ["check", "state", "found", "advice"], form=form, empty="")
    if any(one.state is State.WRONG for one in found):
        raise typer.Exit(1)
