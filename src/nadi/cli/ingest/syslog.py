"""`nadi ingest-syslog`: syslog into a stream."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nadi.cli.options import Controller, TrustStore
from nadi.cli.printing import errors_told, say
from nadi.defaults import DEFAULT_URI
from nadi.errors import InvalidArgumentError, RequestTimeoutError, UnavailableError
from nadi.ingest.syslog.choices import Form, Key

if TYPE_CHECKING:
    import ssl

    from nadi.client.aio import EventWriter
    from nadi.ingest.syslog.receiver import Receiver

_WHERE = "HOST:PORT"
_Address = tuple[str, int]


def ingest_syslog(
    scope: Annotated[str, typer.Argument(help="The scope.")],
    stream: Annotated[str, typer.Argument(help="The stream that the messages go to.")],
    udp: Annotated[str | None, typer.Option(metavar=_WHERE, help="Where to listen for datagrams.")] = None,
    tcp: Annotated[str | None, typer.Option(metavar=_WHERE, help="Where to listen for connections.")] = None,
    tls: Annotated[str | None, typer.Option(metavar=_WHERE, help="Where to listen for connections with TLS.")] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="PEM file of the certificate, for --tls.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM file of the certificate's private key.")] = None,
    tls_clients: Annotated[
        Path | None, typer.Option(help="PEM file of authorities: only clients with a certificate of theirs may send.")
    ] = None,
    key: Annotated[
        Key,
        typer.Option(
            help="The routing key: the host or app that a message names, else the address it is from; or that; or none."
        ),
    ] = Key.HOST,
    form: Annotated[
        Form, typer.Option("--format", help="Events: JSON with a message's fields, or the message as it came.")
    ] = Form.JSON,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing while it works.")] = False,
    controller: Controller = DEFAULT_URI,
    trust_store: TrustStore = None,
) -> None:
    """Listen for syslog (RFC 5424 and the older RFC 3164), and write each message to a stream."""
    from nadi.cli.ingest.running import run_until_stopped

    with errors_told():
        context = _tls(tls, tls_cert, tls_key, tls_clients)
        wanted = {name: _address(text, name) for name, text in (("udp", udp), ("tcp", tcp), ("tls", tls)) if text}
        if not wanted:
            raise InvalidArgumentError("say where to listen, such as --tcp 127.0.0.1:5514: by --udp, --tcp or --tls")
        run_until_stopped(
            lambda: _receive(controller, trust_store, (scope, stream), wanted, context, (form, key), quiet)
        )


def _address(text: str, option: str) -> _Address:
    found = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([^:\[\]\s]+)):([0-9]{1,5})", text)
    if found is None or int(found[3]) > 65535:
        raise InvalidArgumentError(f"--{option} {text!r} is no address: write it as 127.0.0.1:5514, or [::1]:5514")
    return found[1] or found[2], int(found[3])


def _tls(where: str | None, cert: Path | None, key: Path | None, clients: Path | None) -> ssl.SSLContext | None:
    if where is None:
        for name, given in (("--tls-cert", cert), ("--tls-key", key), ("--tls-clients", clients)):
            if given is not None:
                raise InvalidArgumentError(f"{name} has no effect without --tls")
        return None
    if cert is None or key is None:
        raise InvalidArgumentError("--tls needs a certificate and its private key: --tls-cert and --tls-key")
    import ssl

    from nadi.access.tls import ServerTls

    context = ServerTls(cert, key).ssl_context()
    if clients is not None:
        try:
            context.load_verify_locations(clients)
        except (OSError, ssl.SSLError) as error:
            raise InvalidArgumentError(f"the authorities {clients} can't be used: {error}") from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


async def _receive(
    controller: str,
    trust_store: str | None,
    stream: tuple[str, str],
    wanted: dict[str, _Address],
    context: ssl.SSLContext | None,
    chosen: tuple[Form, Key],
    quiet: bool,
) -> None:
    from nadi.cli.ingest.running import Line, end_calmly
    from nadi.client.aio import StreamManager
    from nadi.ingest.syslog.events import Making
    from nadi.ingest.syslog.receiver import Receiver

    async with StreamManager(controller, trust_store=trust_store) as manager:
        writer = await manager.create_writer(*stream, ack_timeout=_PATIENCE_S)
        receiver = Receiver(writer, Making(*chosen))
        async with Line(lambda: _told(receiver), quiet=quiet):
            try:
                for name, address in wanted.items():
                    await _listen(receiver, name, address, context)
                for name, (host, port) in receiver.addresses.items():
                    say(f"listening for syslog over {name} at {f'[{host}]' if ':' in host else host}:{port}")
                await receiver.run()
            finally:
                end_calmly()
                await receiver.close()
                await _close(writer, receiver)


async def _listen(receiver: Receiver, name: str, address: _Address, context: ssl.SSLContext | None) -> None:
    try:
        if name == "udp":
            await receiver.listen_udp(address)
        else:
            await receiver.listen_tcp(address, context if name == "tls" else None)
    except (OSError, UnicodeError) as error:
        raise InvalidArgumentError(f"--{name}: it can't listen there: {error}") from error


async def _close(writer: EventWriter, receiver: Receiver) -> None:
    from nadi.limits import SYSLOG_CLOSING_S

    try:
        await writer.close(SYSLOG_CLOSING_S)
    except RequestTimeoutError as error:
        unstored = receiver.count.messages - receiver.count.stored
        raise UnavailableError(f"{unstored:,} messages that were read may not be stored: {error}") from error


_PATIENCE_S = 30 * 24 * 3600.0  # peers wait as long as the server is away


def _told(receiver: Receiver) -> str:
    count = receiver.count
    text = f"{count.messages:,} messages, {count.bytes_:,} bytes, {receiver.connections:,} connections"
    if unstored := count.messages - count.stored:
        text += f", {unstored:,} not stored yet"
    by_system = receiver.lost_by_system
    if lost := count.lost + by_system:
        text += f", {lost:,} datagrams lost ({count.lost:,} here, {by_system:,} in the system)"
    for many, what in (
        (count.unreadable, "datagrams refused for what came"),
        (count.refused, "connections refused"),
        (count.broken, "connections ended for what came"),
        (count.cut, "messages cut that were too long"),
    ):
        if many:
            text += f", {many:,} {what}"
    return text
