"""A service that gets CloudEvents over real HTTP, records them, and answers as the test says."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.bindings.http import HTTPMessage, from_http_event
from cloudevents.core.formats.json import JSONFormat


@dataclass
class Answer:
    status: int = 204
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    after_s: float = 0.0


@dataclass
class Service:
    """answer: called with a request's events and the number of earlier requests."""

    answer: Callable[[list[BaseCloudEvent], int], Answer] = lambda events, count: Answer()
    ids: set[str] = field(default_factory=set)
    requests: list[list[BaseCloudEvent]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    connections: set[Any] = field(default_factory=set)
    url: str = ""

    @property
    def events(self) -> list[BaseCloudEvent]:
        return [event for request in self.requests for event in request]

    def data(self) -> list[bytes]:
        """Return the data of all events as bytes."""
        return [as_bytes(event) for event in self.events]


def as_bytes(event: BaseCloudEvent) -> bytes:
    data = event.get_data()
    return data if isinstance(data, bytes) else data.encode() if isinstance(data, str) else json.dumps(data).encode()


def decoded(headers: dict[str, str], body: bytes) -> list[BaseCloudEvent]:
    if headers.get("content-type", "").startswith("application/cloudevents-batch+json"):
        return [JSONFormat().read(None, json.dumps(event)) for event in json.loads(body)]
    return [from_http_event(HTTPMessage(headers, body))]


@contextmanager
def serving(service: Service, tls: ssl.SSLContext | None = None) -> Iterator[Service]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            size = int(self.headers["Content-Length"])
            body = self.rfile.read(size)
            if len(body) < size:  # the sender was killed
                return
            headers = {name.lower(): value for name, value in self.headers.items()}
            events = decoded(headers, body)
            answer = service.answer(events, len(service.requests))
            service.requests.append(events)
            service.ids.update(event.get_id() for event in events)
            service.headers.append(headers)
            service.times.append(time.monotonic())
            service.connections.add(self.client_address)
            time.sleep(answer.after_s)
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

        def handle(self) -> None:
            with suppress(ConnectionError):  # the sender was killed
                super().handle()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    service.url = f"{'https' if tls else 'http'}://127.0.0.1:{server.server_port}/events"
    try:
        yield service
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
