"""`nadi kafka`: run a Kafka door."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from nadi.cli.admin.up import taking_options
from nadi.cli.options import Controller, TrustStore
from nadi.cli.printing import say
from nadi.defaults import DEFAULT_KAFKA_PARTITIONS, DEFAULT_KAFKA_PORT, DEFAULT_KAFKA_SCOPE, DEFAULT_URI

_TLS = ("tls_certificate", "tls_key", "tls_client_ca", "tls_client_user", "tls_client_crl")


@taking_options("host", "advertised_host", "users_file", "insecure_public", *_TLS)
def kafka(
    port: Annotated[int, typer.Option(help="Port; 0 picks a free one.", min=0, max=65_535)] = DEFAULT_KAFKA_PORT,
    scope: Annotated[str, typer.Option(help="Scope whose streams are the topics.")] = DEFAULT_KAFKA_SCOPE,
    advertised_port: Annotated[
        int | None, typer.Option(help="Port that clients connect to. (default: --port)", min=1, max=65_535)
    ] = None,
    partitions: Annotated[
        int, typer.Option(help="Partitions of a topic that is created without a number.", min=1)
    ] = DEFAULT_KAFKA_PARTITIONS,
    auto_create: Annotated[bool, typer.Option(help="Create a topic that a client asks for.")] = True,
    controller: Controller = DEFAULT_URI,
    trust_store: TrustStore = None,
    **given: Any,
) -> None:
    """Serve a scope's streams to Kafka clients, until Ctrl-C or SIGTERM.

    The door's own login needs all permissions on the scope. With --users-file, clients log in by SASL or by
    their certificates, and need permissions of their own.
    """
    import uvloop

    from nadi.client.aio import StreamManager
    from nadi.config import ServerConfig, ServerSecurity
    from nadi.kafka.server import DoorOptions, KafkaDoor, serve
    from nadi.standalone.assembly import gate_of, tls_of
    from nadi.standalone.ports import listening

    host, advertised_host = given.pop("host"), given.pop("advertised_host")
    security = ServerSecurity(**given)
    ServerConfig(host=host, advertised_host=advertised_host, security=security).check(lambda option: f"--{option.key}")
    security.check_address(host, advertised_host)
    options = DoorOptions(
        host=host,
        port=port,
        advertised_host=advertised_host,
        advertised_port=advertised_port,
        scope=scope,
        partitions=partitions,
        auto_creates=auto_create,
    )

    def ready(door: KafkaDoor) -> None:
        say(f"nadi serves the streams of scope {scope} as Kafka topics")
        say(f"  bootstrap.servers  {door.address}")
        say("Press Ctrl-C to stop.")

    async def run() -> None:
        manager, certificate = StreamManager(controller, trust_store=trust_store), tls_of(security)
        try:
            tls = None if certificate is None else certificate.context
            door = KafkaDoor(manager, options, gate=gate_of(security), tls=tls)
            await serve(door, listening(host, port, "--port"), ready)
        finally:
            await manager.close()

    uvloop.run(run())
    say("stopped")
