"""Master keys in services: their own libraries against local fakes, which encrypt, rotate, refuse and fail."""

from __future__ import annotations

import base64
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from nadi.encryption.master_keys import MasterKey, open_master_key
from nadi.errors import EncryptionKeyError, InvalidArgumentError, UnavailableError

AESGCM = pytest.importorskip("cryptography.hazmat.primitives.ciphers.aead", reason="needs cryptography").AESGCM


@dataclass
class Keys:
    """The symmetric keys of a fake service. is_down: it answers with an error."""

    versions: dict[str, list[bytes]] = field(default_factory=lambda: {"nadi": [bytes(32)]})
    is_down: bool = False

    def rotate(self) -> None:
        self.versions["nadi"].append(os.urandom(32))

    def encrypt(self, name: str, data: bytes) -> bytes:
        keys, nonce = self.versions[name], os.urandom(12)
        return bytes([len(keys)]) + nonce + bytes(AESGCM(keys[-1]).encrypt(nonce, data, None))

    def decrypt(self, name: str, data: bytes) -> bytes:
        return bytes(AESGCM(self.versions[name][data[0] - 1]).decrypt(data[1:13], data[13:], None))


@contextmanager
def http(answer: Callable[[str, Any, Any], tuple[int, Any]]) -> Iterator[str]:
    """Serve `answer`, which gets path, headers and body and returns status and body, as JSON."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, reply = answer(self.path, self.headers, json.loads(body or b"{}"))
            data = json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            if status == 401:
                self.send_header(
                    "WWW-Authenticate", 'Bearer authorization="https://login/x", resource="https://vault.azure.net"'
                )
            self.end_headers()
            self.wfile.write(data)

        do_PUT = do_GET = do_POST

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def aws(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    pytest.importorskip("boto3", reason="needs boto3")

    def answer(path: str, headers: Any, body: Any) -> tuple[int, Any]:
        if keys.is_down:
            return 500, {"__type": "KMSInternalException", "message": "down"}
        if body["KeyId"] not in keys.versions:
            return 400, {"__type": "NotFoundException", "message": f"key {body['KeyId']} doesn't exist"}
        if headers["X-Amz-Target"] == "TrentService.Encrypt":
            sealed = keys.encrypt(body["KeyId"], base64.b64decode(body["Plaintext"]))
            return 200, {"CiphertextBlob": base64.b64encode(sealed).decode()}
        try:
            opened = keys.decrypt(body["KeyId"], base64.b64decode(body["CiphertextBlob"]))
        except Exception:
            return 400, {"__type": "InvalidCiphertextException", "message": "not its ciphertext"}
        return 200, {"Plaintext": base64.b64encode(opened).decode()}

    with http(answer) as url:
        for name, value in {
            "AWS_ENDPOINT_URL_KMS": url,
            "AWS_ACCESS_KEY_ID": "a",
            "AWS_SECRET_ACCESS_KEY": "s",
            "AWS_DEFAULT_REGION": "eu-central-1",
            "AWS_MAX_ATTEMPTS": "1",
        }.items():
            monkeypatch.setenv(name, value)
        yield "aws-kms:"


@contextmanager
def vault(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    pytest.importorskip("hvac", reason="needs hvac")

    def answer(path: str, headers: Any, body: Any) -> tuple[int, Any]:
        _, _, mount, verb, name = path.split("/")
        if keys.is_down:
            return 503, {"errors": ["sealed"]}
        if headers["X-Vault-Token"] != "token" or mount != "transit":
            return 403, {"errors": ["permission denied"]}
        if name not in keys.versions:
            return 400, {"errors": ["encryption key not found"]}
        if verb == "encrypt":
            sealed = base64.b64encode(keys.encrypt(name, base64.b64decode(body["plaintext"]))).decode()
            return 200, {"data": {"ciphertext": f"vault:v{len(keys.versions[name])}:{sealed}"}}
        try:
            opened = keys.decrypt(name, base64.b64decode(body["ciphertext"].split(":")[2]))
        except Exception:
            return 400, {"errors": ["invalid ciphertext"]}
        return 200, {"data": {"plaintext": base64.b64encode(opened).decode()}}

    with http(answer) as url:
        monkeypatch.setenv("VAULT_ADDR", url)
        monkeypatch.setenv("VAULT_TOKEN", "token")
        yield "vault:"


@contextmanager
def gcp(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    kms = pytest.importorskip("google.cloud.kms", reason="needs google-cloud-kms")
    import grpc
    from google.cloud.kms_v1.services.key_management_service.transports import KeyManagementServiceGrpcTransport

    def serve(request: Any, context: Any, work: Callable[[str, bytes], bytes], given: str) -> bytes:
        if keys.is_down:
            context.abort(grpc.StatusCode.UNAVAILABLE, "down")
        name = request.name.removeprefix("projects/p/locations/l/keyRings/r/cryptoKeys/")
        if name not in keys.versions:
            context.abort(grpc.StatusCode.NOT_FOUND, f"key {name} doesn't exist")
        try:
            return work(name, getattr(request, given))
        except Exception:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "not its ciphertext")
            raise

    def encrypt(request: Any, context: Any) -> Any:
        return kms.EncryptResponse(ciphertext=serve(request, context, keys.encrypt, "plaintext"))

    def decrypt(request: Any, context: Any) -> Any:
        return kms.DecryptResponse(plaintext=serve(request, context, keys.decrypt, "ciphertext"))

    def handler(work: Any, request: Any, response: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(work, request.deserialize, response.serialize)

    methods = {
        "Encrypt": handler(encrypt, kms.EncryptRequest, kms.EncryptResponse),
        "Decrypt": handler(decrypt, kms.DecryptRequest, kms.DecryptResponse),
    }
    server = grpc.server(ThreadPoolExecutor(2))
    service = "google.cloud.kms.v1.KeyManagementService"
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        transport = KeyManagementServiceGrpcTransport(channel=channel)
        monkeypatch.setattr(
            kms, "KeyManagementServiceClient", partial(kms.KeyManagementServiceClient, transport=transport)
        )
        yield "gcp-kms:projects/p/locations/l/keyRings/r/cryptoKeys/"
    server.stop(None).wait()


@contextmanager
def azure(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    pytest.importorskip("azure.keyvault.keys", reason="needs azure-keyvault-keys")
    import azure.identity
    import azure.keyvault.keys
    from azure.core.credentials import AccessToken
    from azure.core.pipeline.transport import RequestsTransport
    from cryptography.hazmat.primitives.asymmetric import padding, rsa
    from cryptography.hazmat.primitives.hashes import SHA256

    pairs: dict[bytes, rsa.RSAPrivateKey] = {}  # by the version's bytes
    oaep = padding.OAEP(padding.MGF1(SHA256()), SHA256(), None)

    def number(value: int) -> str:
        return base64.urlsafe_b64encode(value.to_bytes((value.bit_length() + 7) // 8, "big")).rstrip(b"=").decode()

    def answer(path: str, headers: Any, body: Any) -> tuple[int, Any]:
        if headers["Authorization"] is None:
            return 401, {}
        if keys.is_down:
            return 503, {"error": {"code": "down", "message": "down"}}
        _, _, name, *rest = path.partition("?")[0].split("/")
        if name not in keys.versions:
            return 404, {"error": {"code": "KeyNotFound", "message": f"key {name} doesn't exist"}}
        versions = keys.versions[name]
        version = next((each for each in versions if rest and each.hex() == rest[0]), versions[-1])
        pair = pairs.setdefault(version, rsa.generate_private_key(65537, 2048))
        kid = f"https://fake.vault.azure.net/keys/{name}/{version.hex()}"
        if rest[1:] == ["unwrapkey"]:
            wrapped = base64.urlsafe_b64decode(body["value"] + "==")
            try:
                opened = pair.decrypt(wrapped, oaep)
            except ValueError:
                return 400, {"error": {"code": "BadParameter", "message": "not its ciphertext"}}
            return 200, {"kid": kid, "value": base64.urlsafe_b64encode(opened).rstrip(b"=").decode()}
        public = pair.public_key().public_numbers()
        operations = ["wrapKey", "unwrapKey"]
        jwk = {"kid": kid, "kty": "RSA", "key_ops": operations, "n": number(public.n), "e": number(public.e)}
        return 200, {"key": jwk, "attributes": {"enabled": True}}

    class Credential:
        def get_token(self, *_: object, **__: object) -> AccessToken:
            return AccessToken("token", 1 << 40)

    with http(answer) as url:

        class Transport(RequestsTransport):  # type: ignore[misc]
            """The library accepts https only."""

            def send(self, request: Any, **options: Any) -> Any:
                given, request.url = request.url, request.url.replace("https://fake.vault.azure.net", url)
                try:
                    return super().send(request, **options)
                finally:
                    request.url = given

        client = partial(azure.keyvault.keys.KeyClient, transport=Transport(), retry_total=0)
        monkeypatch.setattr(azure.keyvault.keys, "KeyClient", client)
        monkeypatch.setattr(azure.identity, "DefaultAzureCredential", Credential)
        yield "azure-key-vault:https://fake.vault.azure.net/keys/"


SERVICES = {"aws": aws, "vault": vault, "gcp": gcp, "azure": azure}


@pytest.fixture(params=list(SERVICES))
def service(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Keys, str]]:
    keys = Keys()
    with SERVICES[request.param](keys, monkeypatch) as prefix:
        yield keys, prefix


def test_a_service_wraps_and_unwraps_across_its_rotations(service: tuple[Keys, str]) -> None:
    keys, prefix = service
    master: MasterKey = open_master_key(f"{prefix}nadi")
    assert master.name.endswith("nadi")
    old = master.wrap(b"d" * 32, "data key 1")
    keys.rotate()
    new = open_master_key(f"{prefix}nadi").wrap(b"e" * 32, "data key 2")
    assert b"d" * 8 not in old
    again = open_master_key(f"{prefix}nadi")
    assert (again.unwrap(old, "data key 1"), again.unwrap(new, "data key 2")) == (b"d" * 32, b"e" * 32)
    with pytest.raises(EncryptionKeyError, match="data key 2 is damaged"):
        again.unwrap(old, "data key 2")
    with pytest.raises(EncryptionKeyError):
        again.unwrap(old[:-8] + b"x" * 8, "data key 1")


def test_a_missing_key_is_refused_and_a_failing_service_is_unavailable(service: tuple[Keys, str]) -> None:
    keys, prefix = service
    with pytest.raises(EncryptionKeyError, match="can't be used"):
        open_master_key(f"{prefix}missing").wrap(bytes(32), "data key 1")
    master = open_master_key(f"{prefix}nadi")
    wrapped = master.wrap(bytes(32), "data key 1")
    keys.is_down = True
    with pytest.raises(UnavailableError, match="doesn't answer"):
        master.unwrap(wrapped, "data key 1")


@pytest.mark.parametrize("scheme", ["aws-kms", "gcp-kms", "azure-key-vault", "vault"])
def test_a_missing_library_is_named(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("boto3", "hvac", "google.cloud", "azure.core.exceptions"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InvalidArgumentError, match=rf"pip install 'nadi\[{scheme}\]'"):
        open_master_key(f"{scheme}:https://x/keys/nadi")
