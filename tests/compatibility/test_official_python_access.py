"""The official `pravega` package as a user of a server that asks for credentials, plain and over TLS."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import nadi
from nadi.standalone import ServerSecurity
from tests.access.support import PASSWORD, Certificate, certificate, users_file

SCRIPT = Path(__file__).with_name("official_python_access.py")
EXPECTED = sorted([f"event {n}" for n in range(60)] + [f"kept {n}" for n in range(20)])
TOKEN_LIFETIME_S = 7  # the client renews 5 s before the end; its writer works for 12 s

pytestmark = [
    pytest.mark.compatibility,
    pytest.mark.skipif(
        importlib.util.find_spec("pravega_client") is None,
        reason="the official package `pravega` has no wheel for this Python",
    ),
]


def run(uri: str, user: str, tls: Certificate | None) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "pravega_client_auth_method": "Basic",
        "pravega_client_auth_username": user,
        "pravega_client_auth_password": PASSWORD,
    }
    if tls is not None:
        environment["pravega_client_tls_cert_path"] = str(tls.authority)
    command = [sys.executable, str(SCRIPT), uri, user]
    return subprocess.run(command, capture_output=True, text=True, timeout=130, check=False, env=environment)


@pytest.mark.slow  # its tokens must run out
@pytest.mark.parametrize("encrypted", [pytest.param(False, id="plain"), pytest.param(True, id="tls")])
def test_official_client_with_credentials(tmp_path: Path, encrypted: bool) -> None:
    tls = certificate(tmp_path / "tls", "localhost") if encrypted else None
    security = ServerSecurity(
        users_file=str(users_file(tmp_path / "settings")),
        token_lifetime_s=TOKEN_LIFETIME_S,
        tls_certificate=str(tls.certificate) if tls else None,
        tls_key=str(tls.key) if tls else None,
    )
    # its TLS knows names only, so it must be told one
    with nadi.embedded(tmp_path / "data", security=security, advertised_host="localhost" if tls else None) as server:
        done = run(server.controller_uri, "root", tls)
        assert done.returncode == 0, done.stderr[-3000:]
        assert sorted(done.stdout.splitlines()) == EXPECTED
        refused = run(server.controller_uri, "reader", tls)
        assert refused.stdout.startswith("refused"), refused.stdout + refused.stderr[-3000:]
