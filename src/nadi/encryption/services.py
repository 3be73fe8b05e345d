"""Master keys in key management services, through their own libraries. Each wraps and unwraps there, with the service's
credentials from the environment, as its library finds them.

    aws-kms:ARN                          a symmetric key of AWS KMS, `nadi[aws-kms]`
    gcp-kms:projects/…/cryptoKeys/NAME   a symmetric key of Google Cloud KMS, `nadi[gcp-kms]`
    azure-key-vault:https://…/keys/NAME  an RSA key of Azure Key Vault, `nadi[azure-key-vault]`
    vault:NAME                           a key of HashiCorp Vault's transit engine, `nadi[vault]`; MOUNT/NAME elsewhere

The service must keep earlier versions of a key that it rotates.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from typing import Any

from nadi.errors import EncryptionKeyError, InvalidArgumentError, UnavailableError

_TIMEOUT_S = 10


class ServiceKey:
    """A key in a service. encrypt, decrypt: call the service. refusals: errors that a retry doesn't change; failures:
    all errors of the library."""

    def __init__(
        self,
        name: str,
        encrypt: Callable[[bytes], bytes],
        decrypt: Callable[[bytes], bytes],
        failures: tuple[type[Exception], ...],
        is_refusal: Callable[[Exception], bool],
    ) -> None:
        self.name = name
        self._encrypt, self._decrypt, self._failures, self._is_refusal = encrypt, decrypt, failures, is_refusal

    def wrap(self, key: bytes, context: str) -> bytes:
        return self._call(self._encrypt, context.encode() + b"\0" + key)

    def unwrap(self, wrapped: bytes, context: str) -> bytes:
        found, _, key = self._call(self._decrypt, wrapped).partition(b"\0")
        if found != context.encode():
            raise EncryptionKeyError(f"{context} is damaged: restore the store's object `keys/data`")
        return key

    def _call(self, work: Callable[[bytes], bytes], data: bytes) -> bytes:
        try:
            return work(data)
        except self._failures as error:
            if self._is_refusal(error):
                problem: Exception = EncryptionKeyError(f"the master key {self.name} can't be used: {error}")
            else:
                problem = UnavailableError(f"the service of the master key {self.name} doesn't answer: {error}")
        raise problem


def aws_kms(place: str) -> ServiceKey:
    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, NoRegionError
    except ImportError:
        raise _missing("aws-kms", "boto3") from None
    region = place.split(":")[3] if place.startswith("arn:") else None
    config = Config(connect_timeout=_TIMEOUT_S, read_timeout=_TIMEOUT_S)
    try:
        client: Any = boto3.client("kms", region_name=region, config=config)
    except NoRegionError as error:
        raise EncryptionKeyError(f"the master key {place} can't be used: {error}") from None

    def is_refusal(error: Exception) -> bool:
        status = error.response["ResponseMetadata"]["HTTPStatusCode"] if isinstance(error, ClientError) else 500
        return status < 500 or isinstance(error, NoCredentialsError)

    return ServiceKey(
        place,
        lambda data: client.encrypt(KeyId=place, Plaintext=data)["CiphertextBlob"],
        lambda data: client.decrypt(KeyId=place, CiphertextBlob=data)["Plaintext"],
        (BotoCoreError, ClientError),
        is_refusal,
    )


def gcp_kms(place: str) -> ServiceKey:
    try:
        from google.api_core.exceptions import ClientError, GoogleAPIError
        from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError
        from google.cloud import kms
    except ImportError:
        raise _missing("gcp-kms", "google-cloud-kms") from None
    try:
        client: Any = kms.KeyManagementServiceClient()
    except GoogleAuthError as error:
        raise EncryptionKeyError(f"the master key {place} can't be used: {error}") from None
    return ServiceKey(
        place,
        lambda data: (
            client.encrypt(request={"name": place, "plaintext": data}, retry=None, timeout=_TIMEOUT_S).ciphertext
        ),
        lambda data: (
            client.decrypt(request={"name": place, "ciphertext": data}, retry=None, timeout=_TIMEOUT_S).plaintext
        ),
        (GoogleAPIError, GoogleAuthError),
        lambda error: isinstance(error, (ClientError, DefaultCredentialsError)),
    )


def azure_key_vault(place: str) -> ServiceKey:
    try:
        from azure.core.exceptions import AzureError, ClientAuthenticationError, HttpResponseError
        from azure.identity import DefaultAzureCredential
        from azure.keyvault.keys import KeyClient
        from azure.keyvault.keys.crypto import KeyWrapAlgorithm
    except ImportError:
        raise _missing("azure-key-vault", "azure-keyvault-keys") from None
    vault, _, name = place.partition("/keys/")
    client: Any = KeyClient(vault, DefaultAzureCredential())
    name, _, version = name.partition("/")

    def wrap(data: bytes) -> bytes:
        used: str = client.get_key(name, version or None).properties.version
        cipher = client.get_cryptography_client(name, key_version=used)
        wrapped: bytes = cipher.wrap_key(KeyWrapAlgorithm.rsa_oaep_256, data).encrypted_key
        return used.encode() + b"\0" + wrapped

    def unwrap(data: bytes) -> bytes:
        used, _, wrapped = data.partition(b"\0")
        cipher = client.get_cryptography_client(name, key_version=used.decode())
        key: bytes = cipher.unwrap_key(KeyWrapAlgorithm.rsa_oaep_256, wrapped).key
        return key

    def is_refusal(error: Exception) -> bool:
        status = error.status_code if isinstance(error, HttpResponseError) else None
        return isinstance(error, ClientAuthenticationError) or (status is not None and status < 500)

    return ServiceKey(place, wrap, unwrap, (AzureError,), is_refusal)


def vault(place: str) -> ServiceKey:
    try:
        import hvac
        from hvac.exceptions import VaultError
        from requests import RequestException
    except ImportError:
        raise _missing("vault", "hvac") from None
    mount, _, name = place.rpartition("/")
    transit: Any = hvac.Client(timeout=_TIMEOUT_S, namespace=os.environ.get("VAULT_NAMESPACE")).secrets.transit
    at = {"name": name, "mount_point": mount or "transit"}

    def encrypt(data: bytes) -> bytes:
        answer = transit.encrypt_data(plaintext=base64.b64encode(data).decode(), **at)
        return str(answer["data"]["ciphertext"]).encode()

    def decrypt(data: bytes) -> bytes:
        answer = transit.decrypt_data(ciphertext=data.decode("ascii", "replace"), **at)
        return base64.b64decode(str(answer["data"]["plaintext"]))

    refused = hvac.exceptions.InvalidRequest, hvac.exceptions.Unauthorized, hvac.exceptions.Forbidden
    missing = hvac.exceptions.InvalidPath
    return ServiceKey(
        place,
        encrypt,
        decrypt,
        (VaultError, RequestException),
        lambda error: isinstance(error, (*refused, missing)),
    )


def _missing(extra: str, package: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{extra}: needs the package `{package}`: pip install 'nadi[{extra}]'")
