"""A small Iceberg REST catalog on loopback: namespaces, tables and commits with their requirements, as judged by
PyIceberg's own catalog, with injected faults of commits."""

from __future__ import annotations

import json
import threading
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote

LOST, REFUSED = "lost", "refused"  # the reply to a stored commit is lost; a commit is rejected unseen


class _Name:
    def __init__(self, identifier: tuple[str, ...]) -> None:
        self._identifier = identifier

    def name(self) -> tuple[str, ...]:
        return self._identifier


class IcebergRest:
    """faults: of the next commits, in order, LOST or REFUSED. token: required of callers."""

    def __init__(self, folder: Path, token: str = "") -> None:
        from pyiceberg.catalog.sql import SqlCatalog

        folder.mkdir(exist_ok=True)
        properties = {"uri": f"sqlite:///{folder}/rest.db", "warehouse": f"file://{folder}/lake"}
        self.catalog = SqlCatalog("rest", **properties)
        self.faults: deque[str] = deque()
        self.token, self.commits = token, 0
        self.lock = threading.Lock()

    def __enter__(self) -> Self:
        owner = self

        class Handler(_Handler):
            rest = owner

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.uri = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self.catalog.engine.dispose()


class _Handler(BaseHTTPRequestHandler):
    rest: Any
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._answered({})

    do_HEAD = do_GET

    def do_POST(self) -> None:
        self._answered(json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}"))

    def _answered(self, body: dict[str, Any]) -> None:
        from pyiceberg import exceptions

        path = [unquote(part) for part in self.path.partition("?")[0].strip("/").split("/")][1:]
        if self.rest.token and self.headers.get("Authorization") != f"Bearer {self.rest.token}":
            return self._send(401, _error("NotAuthorizedException", "show the token"))
        try:
            with self.rest.lock:
                status, answer = self._answer(path, body)
        except (exceptions.NoSuchTableError, exceptions.NoSuchNamespaceError) as error:
            status, answer = 404, _error(type(error).__name__, str(error))
        except (
            exceptions.CommitFailedException,
            exceptions.TableAlreadyExistsError,
            exceptions.NamespaceAlreadyExistsError,
        ) as error:
            status, answer = 409, _error(type(error).__name__, str(error))
        return self._send(status, answer)

    def _answer(self, path: list[str], body: dict[str, Any]) -> tuple[int, Any]:
        catalog = self.rest.catalog
        match path:
            case ["config"]:
                return 200, {"defaults": {}, "overrides": {}}
            case ["namespaces"]:
                catalog.create_namespace(tuple(body["namespace"]))
                return 200, {"namespace": body["namespace"], "properties": {}}
            case ["namespaces", namespace]:
                return 200, {"namespace": [namespace], "properties": catalog.load_namespace_properties(namespace)}
            case ["namespaces", namespace, "tables"]:
                return 200, self._created(namespace, body)
            case ["namespaces", namespace, "tables", name] if self.command != "POST":
                table = catalog.load_table((namespace, name))
                return 200, {**_described(table), "config": {}}
            case ["namespaces", namespace, "tables", name]:
                return self._committed((namespace, name), body)
        return 404, _error("NotFound", "/".join(path))

    def _created(self, namespace: str, body: dict[str, Any]) -> Any:
        from pyiceberg.schema import Schema

        assert body["stage-create"], "the lake creates tables that way"
        schema = Schema.model_validate(body["schema"])
        properties = body.get("properties") or {}
        staged = self.rest.catalog._create_staged_table((namespace, body["name"]), schema, properties=properties)
        return {"metadata": json.loads(staged.metadata.model_dump_json()), "config": {}}

    def _committed(self, identifier: tuple[str, str], body: dict[str, Any]) -> tuple[int, Any]:
        from pyiceberg.table import CommitTableRequest

        fault = self.rest.faults.popleft() if self.rest.faults else ""
        if fault == REFUSED:
            return 503, _error("ServiceUnavailable", "later")
        asked = CommitTableRequest.model_validate(
            {"identifier": {"namespace": identifier[:1], "name": identifier[1]}} | body
        )
        table: Any = _Name(identifier)
        done = self.rest.catalog.commit_table(table, asked.requirements, asked.updates)
        self.rest.commits += 1
        if fault == LOST:
            return 504, _error("GatewayTimeout", "the outcome is unknown")
        return 200, {
            "metadata-location": done.metadata_location,
            "metadata": json.loads(done.metadata.model_dump_json()),
        }

    def _send(self, status: int, answer: Any) -> None:
        data = json.dumps(answer).encode() if self.command != "HEAD" else b""
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _described(table: Any) -> dict[str, Any]:
    return {"metadata-location": table.metadata_location, "metadata": json.loads(table.metadata.model_dump_json())}


def _error(kind: str, message: str) -> dict[str, Any]:
    return {"error": {"type": kind, "message": message, "code": 0}}
