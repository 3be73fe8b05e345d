"""The `nadi` command: `nadi up` serves a data folder, `nadi passwd` keeps its users file, `nadi repair`
gives up a damaged log tail; `scope`, `stream`, `bookmark`, `slice` and `read` are clients of a running server."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Any

import typer
import uvloop
from rich.console import Console

from nadi.access.bearer import DEFAULT_CLAIM
from nadi.access.tokens import DEFAULT_LIFETIME_S
from nadi.cli.bookmarks import bookmark_app, slice_app
from nadi.cli.passwd import passwd
from nadi.cli.read import read
from nadi.cli.streams import scope_app, stream_app
from nadi.errors import NadiError
from nadi.segmentstore.store import FolderLock
from nadi.segmentstore.tier1.cut import cut
from nadi.standalone.security import ServerSecurity
from nadi.standalone.server import (
    DEFAULT_CONTROLLER_PORT,
    DEFAULT_REST_PORT,
    DEFAULT_STORE_PORT,
    Server,
    serve,
)

app = typer.Typer(help="Streaming storage: keep streams, bookmark them, replay any slice.", no_args_is_help=True)
console = Console(highlight=False)
errors = Console(stderr=True, highlight=False)
app.command()(passwd)
app.command()(read)
app.add_typer(scope_app, name="scope")
app.add_typer(stream_app, name="stream")
app.add_typer(bookmark_app, name="bookmark")
app.add_typer(slice_app, name="slice")
_panel: Any = {"rich_help_panel": "Security (docs/security.md)"}


@app.command()
def up(
    data: Annotated[Path, typer.Option(help="Folder that holds all data; made if missing.")] = Path("nadi-data"),
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The controller's port; 0 for any free ports.")] = DEFAULT_CONTROLLER_PORT,
    store_port: Annotated[
        int | None, typer.Option(help="The segment store's port; 0 for any. [default: 12345, or any with --port 0]")
    ] = None,
    rest_port: Annotated[
        int | None, typer.Option(help="The REST interface's port; 0 for any. [default: 9091, or any with --port 0]")
    ] = None,
    containers: Annotated[
        int | None, typer.Option(help="Segment containers of a new folder; fixed from then on. [default: 4]")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say more about what goes on.")] = False,
    advertised_host: Annotated[
        str | None, typer.Option(help="Name or address that clients are told to connect to. [default: --host]")
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(help="PEM file of the certificate; with it all ports speak TLS.", **_panel)
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM file of the certificate's private key.", **_panel)] = None,
    users_file: Annotated[
        Path | None, typer.Option(help="Who may log in with a password; see `nadi passwd`.", **_panel)
    ] = None,
    bearer_keys: Annotated[
        str | None, typer.Option(help="PEM or JWKS file, or https address of a JWKS, for bearer tokens.", **_panel)
    ] = None,
    bearer_issuer: Annotated[str, typer.Option(help="The `iss` that bearer tokens must have.", **_panel)] = "",
    bearer_audience: Annotated[str, typer.Option(help="The `aud` that bearer tokens must have.", **_panel)] = "",
    bearer_claim: Annotated[str, typer.Option(help="The claim that holds the permissions.", **_panel)] = DEFAULT_CLAIM,
    signing_key: Annotated[
        Path | None, typer.Option(help="Key of delegation tokens. [default: one in the data folder]", **_panel)
    ] = None,
    token_lifetime: Annotated[
        int, typer.Option(help="Seconds that a delegation token holds.", min=1, **_panel)
    ] = DEFAULT_LIFETIME_S,
    insecure_public: Annotated[
        bool, typer.Option("--insecure-public", help="Serve everybody on a public address, unasked.", **_panel)
    ] = False,
) -> None:
    """Serve a data folder until Ctrl-C or SIGTERM."""
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, format="%(levelname)s %(message)s")
    if store_port is None:
        store_port = 0 if port == 0 else DEFAULT_STORE_PORT
    if rest_port is None:
        rest_port = 0 if port == 0 else DEFAULT_REST_PORT
    security = ServerSecurity(
        tls_certificate=_text(tls_cert),
        tls_key=_text(tls_key),
        users_file=_text(users_file),
        bearer_keys=bearer_keys,
        bearer_issuer=bearer_issuer,
        bearer_audience=bearer_audience,
        bearer_claim=bearer_claim,
        signing_key_file=_text(signing_key),
        token_lifetime_s=token_lifetime,
        insecure_public=insecure_public,
    )
    server = Server(
        data,
        host=host,
        store_port=store_port,
        controller_port=port,
        rest_port=rest_port,
        containers=containers,
        advertised_host=advertised_host,
        security=security,
    )

    def ready(s: Server) -> None:
        console.print(f"nadi serves [bold]{data.resolve()}[/bold]")
        console.print(f"  controller     {s.controller_uri}")
        console.print(f"  REST           {s.rest_uri}")
        console.print(f"  segment store  {s.store_address[0]}:{s.store_address[1]}")
        console.print("Ctrl-C stops it.")

    try:
        uvloop.run(serve(server, ready))
    except NadiError as error:
        errors.print(f"[red]error:[/red] {error}", soft_wrap=True)
        raise typer.Exit(1) from None
    console.print("stopped")


def _text(path: Path | None) -> str | None:
    return str(path) if path is not None else None


@app.command()
def repair(
    cut_log: Annotated[Path, typer.Option(help="The damaged file of the durable log, as the error named it.")],
    at: Annotated[int, typer.Option(help="The byte where the damage begins, as the error named it.")],
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask.")] = False,
) -> None:
    """Give up everything acknowledged after a damaged place of the log; what is cut is set aside, not erased."""
    folder = cut_log.resolve().parent
    try:
        lock = FolderLock(folder.parent.parent)
    except NadiError as error:
        errors.print(f"[red]error:[/red] {error}", soft_wrap=True)
        raise typer.Exit(1) from None
    if not yes:
        typer.confirm(f"Give up everything in {folder} from byte {at} of {cut_log.name} on?", abort=True)
    try:
        console.print(cut(folder, cut_log.name, at), soft_wrap=True)
    except (NadiError, OSError, ValueError) as error:
        errors.print(f"[red]error:[/red] {error}", soft_wrap=True)
        raise typer.Exit(1) from None
    finally:
        lock.release()


def main() -> None:
    app()


if __name__ == "__main__":
    main()
