"""Bearer tokens checked with keys from a file, a key set, and an address."""

from __future__ import annotations

import asyncio
import http.server
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from nadi.access import bearer as bearer_module
from nadi.access.authentication import Gate
from nadi.access.bearer import BearerKeys, BearerSettings
from nadi.access.permissions import Caller, Permission
from nadi.errors import InvalidArgumentError, NotAuthenticatedError, UnavailableError

RSA = rsa.generate_private_key(65537, 2048)
OTHER = rsa.generate_private_key(65537, 2048)
EC = ec.generate_private_key(ec.SECP256R1())
PEM = RSA.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
ISSUER, AUDIENCE = "https://id.example", "nadi"


def token(key: Any = RSA, algorithm: str = "RS256", kid: str | None = None, **claims: Any) -> str:
    payload = {
        "sub": "ann",
        "iss": ISSUER,
        "aud": AUDIENCE,
        "exp": time.time() + 60,
        "nadi": ["prn::/scope:home/*,READ_UPDATE"],
        **claims,
    }
    headers = {"kid": kid} if kid else None
    return jwt.encode({k: v for k, v in payload.items() if v is not None}, key, algorithm, headers)


def settings(keys: str, **more: Any) -> BearerSettings:
    return BearerSettings(keys, ISSUER, AUDIENCE, **more)


def key_set(*keys: dict[str, Any]) -> str:
    return json.dumps({"keys": keys})


RSA_JWK = {**RSAAlgorithm.to_jwk(RSA.public_key(), as_dict=True), "kid": "one", "alg": "RS256"}
EC_JWK = {**ECAlgorithm.to_jwk(EC.public_key(), as_dict=True), "kid": "two", "alg": "ES256"}
SECRET_JWK = {"kty": "oct", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA", "kid": "three", "alg": "HS256"}


def ask(keys: BearerKeys, text: str) -> Caller:
    return asyncio.run(keys.caller(text))


@pytest.fixture
def pem(tmp_path: Path) -> BearerKeys:
    (tmp_path / "key.pem").write_bytes(PEM)
    return BearerKeys(settings(str(tmp_path / "key.pem")))


def test_valid_token_returns_its_caller(pem: BearerKeys) -> None:
    caller = ask(pem, token())
    assert caller.name == "ann"
    assert caller.may("prn::/scope:home/stream:a", Permission.READ_UPDATE)
    assert not caller.may("prn::/scope:other/stream:a", Permission.READ)
    assert ask(pem, token(nadi="prn::/,READ;prn::/scope:a,READ")).may("prn::/scope:a", Permission.READ)
    assert not ask(pem, token(nadi=None)).may("prn::/", Permission.READ)


WRONG = {
    "expired": token(exp=time.time() - 1),
    "without an expiry": token(exp=None),
    "another issuer": token(iss="https://else.example"),
    "no issuer": token(iss=None),
    "another audience": token(aud="else"),
    "no audience": token(aud=None),
    "another key": token(OTHER),
    "unsigned": jwt.encode({"sub": "ann", "iss": ISSUER, "aud": AUDIENCE, "exp": time.time() + 60}, "", "none"),
    "another kind of key": token(EC, "ES256"),
    "invalid grants": token(nadi=["everything"]),
    "grants of another type": token(nadi=[1]),
    "grants as a mapping": token(nadi={"prn::/": "READ"}),
    "no token": "a.b.c",
    "not ASCII": "é.ü.ß",
}


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG)
def test_invalid_token_is_rejected(pem: BearerKeys, text: str) -> None:
    with pytest.raises(NotAuthenticatedError):
        ask(pem, text)


def test_token_signed_with_the_public_key_as_secret_is_rejected(pem: BearerKeys) -> None:
    import base64
    import hashlib
    import hmac

    def part(value: bytes) -> str:
        return base64.urlsafe_b64encode(value).decode().rstrip("=")

    claims = {"sub": "x", "iss": ISSUER, "aud": AUDIENCE, "exp": time.time() + 60, "nadi": ["prn::*,READ_UPDATE"]}
    body = part(b'{"alg":"HS256","typ":"JWT"}') + "." + part(json.dumps(claims).encode())
    signed = body + "." + part(hmac.digest(PEM, body.encode(), hashlib.sha256))
    with pytest.raises(NotAuthenticatedError):
        ask(pem, signed)


def test_key_set_selects_the_key_by_id(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text(key_set(RSA_JWK, EC_JWK, SECRET_JWK))
    keys = BearerKeys(settings(str(path)))
    assert ask(keys, token(kid="one")).name == "ann"
    assert ask(keys, token(EC, "ES256", kid="two")).name == "ann"
    secret = b"secret-secret-secret-secret-secret"
    for text in (token(), token(kid="two"), token(kid="unknown"), token(secret, "HS256", kid="three")):
        with pytest.raises(NotAuthenticatedError):
            ask(keys, text)


@contextmanager
def serving(answers: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield an address that returns the answers in turn and then always the last one, and the list of requests."""
    requests: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = (answers.pop(0) if len(answers) > 1 else answers[0]).encode()
            requests.append(self.path)
            self.send_response(200 if body else 500)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/keys", requests
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


async def test_keys_at_an_address_follow_their_rotation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bearer_module, "BEARER_KEYS_REFRESH_S", 0.0)
    with serving([key_set(RSA_JWK), key_set(EC_JWK)]) as (address, requests):
        keys = BearerKeys(settings(address))
        assert (await keys.caller(token(kid="one"))).name == "ann"
        assert (await keys.caller(token(kid="one"))).name == "ann"
        assert len(requests) == 1, "a set with the key is not fetched again"
        assert (await keys.caller(token(EC, "ES256", kid="two"))).name == "ann"
        with pytest.raises(NotAuthenticatedError):
            await keys.caller(token(kid="one"))


def test_unknown_key_ids_fetch_the_key_set_only_once() -> None:
    with serving([key_set(RSA_JWK)]) as (address, requests):
        keys = BearerKeys(settings(address))

        async def test() -> None:
            for number in range(20):
                with pytest.raises(NotAuthenticatedError):
                    await keys.caller(token(kid=f"unknown {number}"))

        asyncio.run(test())
        assert len(requests) == 1


def test_unavailable_address_raises_unavailable_error() -> None:
    with serving([""]) as (address, _), pytest.raises(UnavailableError):
        ask(BearerKeys(settings(address)), token(kid="one"))


async def test_gate_accepts_bearer_tokens(tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_bytes(PEM)
    gate = Gate(None, settings(str(tmp_path / "key.pem")))
    resource = "prn::/scope:home/stream:a"
    caller = await gate.authorized(f"Bearer {token()}", resource, Permission.READ_UPDATE)
    assert caller.name == "ann"
    with pytest.raises(NotAuthenticatedError):
        await gate.caller("Basic YTpi")
    gate.close()


def test_invalid_settings_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "junk").write_text("junk")
    for keys in (str(tmp_path / "missing"), str(tmp_path / "junk"), "http://id.example/keys"):
        with pytest.raises(InvalidArgumentError):
            BearerKeys(settings(keys))
    with pytest.raises(InvalidArgumentError, match="issuer"):
        BearerKeys(BearerSettings(str(tmp_path / "junk"), "", "x"))
