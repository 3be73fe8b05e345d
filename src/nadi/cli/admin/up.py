"""`nadi up`: serve a data folder."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nadi.cli.printing import errors_told, say
from nadi.defaults import (
    DEFAULT_CLAIM,
    DEFAULT_CONTROLLER_PORT,
    DEFAULT_HOST,
    DEFAULT_REST_PORT,
    DEFAULT_SCALING,
    DEFAULT_STORE_PORT,
    DEFAULT_TOKEN_LIFETIME_S,
)

if TYPE_CHECKING:
    from nadi.standalone.server import Server

_panel: Any = {"rich_help_panel": "Security (docs/security.md)"}


def up(
    data: Annotated[Path, typer.Option(help="Folder that holds all data; created if missing.")] = Path("nadi-data"),
    host: Annotated[str, typer.Option(help="Address to listen on.")] = DEFAULT_HOST,
    port: Annotated[int, typer.Option(help="The controller's port; 0 for any free ports.")] = DEFAULT_CONTROLLER_PORT,
    store_port: Annotated[
        int | None, typer.Option(help="The segment store's port; 0 for any. [default: 12345, or any with --port 0]")
    ] = None,
    rest_port: Annotated[
        int | None, typer.Option(help="The REST interface's port; 0 for any. [default: 9091, or any with --port 0]")
    ] = None,
    containers: Annotated[
        int | None, typer.Option(help="Segment containers of a new folder; can't be changed later. [default: 1]")
    ] = None,
    scaling: Annotated[
        str,
        typer.Option(help="How streams with a scaling policy follow their load: classic or fast."),
    ] = DEFAULT_SCALING,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")] = False,
    advertised_host: Annotated[
        str | None, typer.Option(help="Name or address that clients should connect to. [default: --host]")
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(help="PEM file of the certificate; makes all ports speak TLS.", **_panel)
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
        Path | None, typer.Option(help="Key that signs delegation tokens. [default: one in the data folder]", **_panel)
    ] = None,
    token_lifetime: Annotated[
        int, typer.Option(help="How long a delegation token is valid, in seconds.", min=1, **_panel)
    ] = DEFAULT_TOKEN_LIFETIME_S,
    insecure_public: Annotated[
        bool,
        typer.Option("--insecure-public", help="Serve everybody on a public address, no login.", **_panel),
    ] = False,
) -> None:
    """Serve a data folder until Ctrl-C or SIGTERM."""
    from nadi.segmentstore.state.file.check import look_ahead

    look_ahead(data)
    import uvloop

    from nadi.standalone.security import ServerSecurity
    from nadi.standalone.server import Server, serve

    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, format="%(levelname)s %(message)s")
    if store_port is None:
        store_port = 0 if port == 0 else DEFAULT_STORE_PORT
    if rest_port is None:
        rest_port = 0 if port == 0 else DEFAULT_REST_PORT
    security = ServerSecurity(
        tls_certificate=tls_cert,
        tls_key=tls_key,
        users_file=users_file,
        bearer_keys=bearer_keys,
        bearer_issuer=bearer_issuer,
        bearer_audience=bearer_audience,
        bearer_claim=bearer_claim,
        signing_key_file=signing_key,
        token_lifetime_s=token_lifetime,
        insecure_public=insecure_public,
    )

    def ready(s: Server) -> None:
        say(f"nadi is serving {data.resolve()}")
        say(f"  controller     {s.controller_uri}")
        say(f"  REST           {s.rest_uri}")
        say(f"  segment store  {s.store_address[0]}:{s.store_address[1]}")
        say("Press Ctrl-C to stop.")

    with errors_told():
        server = Server(
            data,
            host=host,
            store_port=store_port,
            controller_port=port,
            rest_port=rest_port,
            containers=containers,
            advertised_host=advertised_host,
            security=security,
            scaling=scaling,
        )
        uvloop.run(serve(server, ready))
    say("stopped")
