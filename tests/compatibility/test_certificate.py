"""nadi's client and the official Python client accept the certificate made as in docs/security.md."""

from __future__ import annotations

import os
import re
import shutil
import socket
import ssl
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import nadi
from nadi.errors import PermissionDeniedError, StreamNotFoundError
from nadi.standalone import ServerSecurity
from tests.access.support import PASSWORD
from tests.compatibility.official_python import OfficialPython, installed

PAGE = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
NAME = "streams.example"

pytestmark = [
    pytest.mark.compatibility,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="the page makes the certificate with openssl"),
]


def run(folder: Path, command: str, stdin: str = "") -> None:
    """Run the page's command with this machine's name."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command.replace(NAME, "localhost")],
        cwd=folder,
        input=stdin,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )


def in_page(pattern: str) -> str:
    """Return the only match of the pattern in the page."""
    (text,) = re.findall(pattern, PAGE)
    return str(text)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in which the page's commands were run: for the certificate, and for a user."""
    folder = tmp_path_factory.mktemp("page")
    certificate, *_ = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    run(folder, certificate)
    run(folder, "nadi passwd users ann --grant 'prn::*,READ_UPDATE' --password-stdin", PASSWORD + "\n")
    return folder


def security(folder: Path) -> ServerSecurity:
    return ServerSecurity(
        users_file=str(folder / in_page(r"--users-file (\w+)")),
        tls_certificate=str(folder / in_page(r"--tls-cert (\S+)")),
        tls_key=str(folder / in_page(r"--tls-key (\S+)")),
    )


def test_both_clients_accept_the_certificate(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not installed():
        pytest.skip("no wheel of the official package `pravega` exists for this Python")
    with nadi.embedded(tmp_path, security=security(folder), advertised_host="localhost") as server:
        assert server.controller_uri.startswith("tls://localhost:")
        monkeypatch.setenv("pravega_client_auth_method", "Basic")
        monkeypatch.setenv("pravega_client_auth_username", "ann")
        monkeypatch.setenv("pravega_client_auth_password", PASSWORD)
        monkeypatch.setenv("pravega_client_tls_cert_path", str(folder / in_page(r"tls_cert_path=(\S+)")))
        official = OfficialPython()
        try:
            theirs = official.package.StreamManager(server.controller_uri, auth_enabled=True, tls_enabled=True)
            assert theirs.create_scope("home") is True
            assert theirs.create_stream("home", "meters", 1) is True
            writer = theirs.create_writer("home", "meters")
            official.extras.write(writer, [("theirs", "key")])
        finally:
            official.close()
        trusted = folder / in_page(r'trust_store="(\S+)"')
        with nadi.StreamManager(
            server.controller_uri, credentials=nadi.Basic("ann", PASSWORD), trust_store=trusted
        ) as ours:
            with ours.create_writer("home", "meters") as output:
                output.write_event(b"ours", "key").result(60)
            tail = ours.stream_info("home", "meters").tail
            assert [event.data for event in ours.read_events("home", "meters", end=tail)] == [b"theirs", b"ours"]


def test_certificate_passes_strict_verification(folder: Path, tmp_path: Path) -> None:
    """Strict verification, Python's default from 3.13, accepts it, but not with another authority of the same name."""
    run(tmp_path, re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)[0])
    with nadi.embedded(tmp_path / "data", security=security(folder), advertised_host="localhost") as server:
        for place, trusted in ((folder, True), (tmp_path, False)):
            context = ssl.create_default_context(cafile=place / "authority.pem")
            context.verify_flags |= ssl.VERIFY_X509_STRICT
            with socket.create_connection(server.store_address, 60) as plain:
                if trusted:
                    context.wrap_socket(plain, server_hostname="localhost").close()
                else:
                    with pytest.raises(ssl.SSLCertVerificationError):
                        context.wrap_socket(plain, server_hostname="localhost")


def test_client_certificate_of_the_page_is_a_login(folder: Path, tmp_path: Path) -> None:
    (commands,) = [block for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) if "--no-password" in block]
    folder = shutil.copytree(folder, tmp_path / "page")  # the commands change the user
    run(folder, commands)
    guards = replace(security(folder), tls_client_ca=str(folder / "authority.pem"))
    login = nadi.ClientCertificate(str(folder / "ann.pem"), str(folder / "ann.key"))
    with (
        nadi.embedded(tmp_path / "data", security=guards, advertised_host="localhost") as server,
        nadi.StreamManager(
            server.controller_uri, credentials=login, trust_store=folder / "authority.pem", timeout=20
        ) as manager,
    ):
        with pytest.raises(PermissionDeniedError):  # its grant is for the scope's contents
            manager.create_scope("home")
        with pytest.raises(StreamNotFoundError):
            manager.stream_info("home", "meters")


def test_keys_are_readable_only_by_the_owner(folder: Path) -> None:
    for name in ("authority.key", "server.key", "users"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600, name
