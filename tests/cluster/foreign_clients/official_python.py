"""Pravega's official Python client, package `pravega`, as a verifier: a writer, transactions and a reader of a group,
each in a separate process, because its calls block the whole process.

After a failure each starts over: the writer with new keys, because the outcome of its last events is unknown; the
reader in a new group from the head of the stream, because the client doesn't report its reader's position.
"""

from __future__ import annotations

import importlib.util
import sys
import time

from tests.cluster.foreign_clients.verifier import TAIL_S, MissingError, Transcript, check_same
from tests.cluster.processes.client import Client, Promised
from tests.cluster.processes.cluster import Cluster
from tests.crash.load import Ledger

NUMBER = 200
_ROLES = ("writing", "transacting", "reading")
_SETTLED_S = 240.0  # the client stalls for a minute after an unexpected answer


class OfficialPython:
    """Verifier whose writer and reader use the balancer, and its transactions only the last server."""

    name = "python"

    def __init__(self, cluster: Cluster, pause_s: float) -> None:
        if importlib.util.find_spec("pravega_client") is None:
            raise MissingError("the official package `pravega` isn't installed: no wheel exists for this Python")
        self._folder = cluster.folder / self.name
        self._folder.mkdir()
        uris = dict.fromkeys(_ROLES, cluster.uri) | {"transacting": cluster.servers[-1].uri}
        self._clients = {role: self._client(role, uri, pause_s) for role, uri in uris.items()}
        self._transcript = self._transcript_of(0)
        self._generation = 0

    def _client(self, role: str, uri: str, pause_s: float) -> Client:
        folder = self._folder / role
        arguments = [role, uri, str(NUMBER), str(pause_s), str(folder)]
        command = [sys.executable, "-m", "tests.cluster.foreign_clients.official_python_main", *arguments]
        return Client(f"the official Python client, {role},", command, folder, {"RUST_BACKTRACE": "0"})

    def _transcript_of(self, generation: int) -> Transcript:
        return Transcript(self._folder / "reading" / f"read-{generation}", "the official Python client")

    def check(self) -> None:
        for client in self._clients.values():
            client.check()
        self._transcript.take()
        generation = round(self._clients["reading"].progress().get("groups", 1)) - 1
        if generation != self._generation:
            self._generation, self._transcript = generation, self._transcript_of(generation)

    def progress(self) -> dict[str, float]:
        return {name: value for client in self._clients.values() for name, value in client.progress().items()}

    def settle(self) -> None:
        writing = [self._clients[role] for role in ("writing", "transacting")]
        for client in writing:
            client.signal()
        for client in writing:
            client.await_file("settled", _SETTLED_S)

    def verify(self, ledger: Ledger) -> list[Promised]:
        deadline = time.monotonic() + TAIL_S
        self.check()
        while (has := self._transcript.ledger.events) < ledger.events:
            assert time.monotonic() < deadline, f"the official Python client has {has:,} of {ledger.events:,} events"
            time.sleep(0.1)
            self.check()  # its reader may start over
        check_same(self._transcript.ledger, ledger, "the official Python client")
        return [self._clients[role].promised() for role in ("writing", "transacting")]

    def close(self) -> None:
        for client in self._clients.values():
            client.close()
