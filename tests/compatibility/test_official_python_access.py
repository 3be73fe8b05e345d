"""The official `pravega` package as a user of a server with authentication, plain and over TLS."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import nadi
from nadi.standalone import ServerSecurity
from tests.access.support import PASSWORD, certificate, users_file
from tests.compatibility.official_python import OfficialError, OfficialPython, installed

TOKEN_LIFETIME_S = 7  # the client renews 5 s before the end; its writer works for 12 s

pytestmark = [
    pytest.mark.compatibility,
    pytest.mark.skipif(not installed(), reason="no wheel of the official package `pravega` exists for this Python"),
]


@pytest.mark.slow  # waits for tokens to expire
@pytest.mark.parametrize("encrypted", [pytest.param(False, id="plain"), pytest.param(True, id="tls")])
def test_official_client_with_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encrypted: bool) -> None:
    tls = certificate(tmp_path / "tls", "localhost") if encrypted else None
    security = ServerSecurity(
        users_file=str(users_file(tmp_path / "settings")),
        token_lifetime_s=TOKEN_LIFETIME_S,
        tls_certificate=str(tls.certificate) if tls else None,
        tls_key=str(tls.key) if tls else None,
    )
    monkeypatch.setenv("pravega_client_auth_method", "Basic")
    monkeypatch.setenv("pravega_client_auth_password", PASSWORD)
    if tls is not None:
        monkeypatch.setenv("pravega_client_tls_cert_path", str(tls.authority))
    clients = []
    # its TLS accepts only host names
    with nadi.embedded(tmp_path / "data", security=security, advertised_host="localhost" if tls else None) as server:
        for user in ("root", "reader"):
            monkeypatch.setenv("pravega_client_auth_username", user)
            clients.append(OfficialPython())
        client, reader = clients
        try:
            uri = server.controller_uri
            manager = client.package.StreamManager(uri, auth_enabled=True, tls_enabled=encrypted)
            assert manager.create_scope("home") is True
            assert manager.create_stream("home", "official", 2) is True
            writer = manager.create_writer("home", "official")
            events = [f"event {number}" for number in range(60)]
            for number, event in enumerate(events):
                writer.write_event(event, routing_key=f"key {number % 7}")
                time.sleep(0.2)  # longer in total than a token's lifetime
            writer.flush()
            transaction = manager.create_transaction_writer("home", "official", 7).begin_txn()
            kept = [f"kept {number}" for number in range(20)]
            client.extras.write(transaction, [(event, f"key {number % 7}") for number, event in enumerate(kept)])
            transaction.commit()
            reading = manager.create_reader_group("readers", "home", "official").create_reader("reader-1")
            read_events = client.extras.read(reading, len(events + kept))
            assert sorted(event.decode() for event in read_events) == sorted(events + kept)
            refused = reader.package.StreamManager(uri, auth_enabled=True, tls_enabled=encrypted)
            with pytest.raises(OfficialError):
                refused.create_stream("home", "forbidden", 1)
        finally:
            for process in clients:
                process.close()
