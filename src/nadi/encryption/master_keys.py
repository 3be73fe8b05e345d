"""Master keys, which wrap the data keys of stores: from a file, an environment variable, or a key management service.

    file:/etc/nadi/master.key     a key in each line, the newest first, as `nadi key create` writes them
    env:NADI_MASTER_KEY           the same, in an environment variable
    aws-kms:ARN, vault:NAME, …    see `services`

A local key is 32 bytes in base64. Earlier keys stay below the newest one until `nadi key rotate` has wrapped every
store's data keys with it. A service wraps and unwraps there; its key never leaves it.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from nadi.encryption import services
from nadi.encryption.sealing import KEY_BYTES, VARIABLE, cipher
from nadi.errors import EncryptionKeyError, InvalidArgumentError

_NONCE_BYTES = 12


class MasterKey(Protocol):
    """A master key. name: identifies it in messages, and next to what it wrapped; it isn't secret. All calls block."""

    name: str

    def wrap(self, key: bytes, context: str) -> bytes:
        """Encrypt a data key. context: authenticated, but not stored. EncryptionKeyError: the service refuses.
        UnavailableError: it doesn't answer."""

    def unwrap(self, wrapped: bytes, context: str) -> bytes:
        """Return the data key that was wrapped with that context. EncryptionKeyError: another key wrapped it, or it is
        damaged. UnavailableError: the service doesn't answer."""


def open_master_key(source: str) -> MasterKey:
    """Return the master key from a source, such as `file:PATH`, read now. InvalidArgumentError: it isn't a source, or
    its library isn't installed. EncryptionKeyError: the key is missing or malformed."""
    scheme, _, place = source.partition(":")
    if scheme not in _SOURCES or not place:
        raise InvalidArgumentError(
            f"{source[:40]!r} isn't a source of a master key: use {', '.join(f'{name}:…' for name in _SOURCES)}"
        )
    return _SOURCES[scheme](place)


def master_key(source: str | None, where: str) -> MasterKey:
    """`open_master_key` for the store at that URL. source: None: an environment variable names it. EncryptionKeyError:
    it isn't named, or as `open_master_key`."""
    source = source or os.environ.get(VARIABLE)
    if not source:
        raise EncryptionKeyError(
            f"{where} is encrypted: name the source of its master key, such as file:/etc/nadi/master.key, with "
            f"the environment variable {VARIABLE} (`nadi up` and `nadi key rotate` also take --encryption-key)"
        )
    return open_master_key(source)


def new_key() -> str:
    """Return a new local key, as a line."""
    return base64.b64encode(os.urandom(KEY_BYTES)).decode()


class LocalKeys:
    """Master keys that this process knows: it wraps with the first, and unwraps with any."""

    def __init__(self, text: str, where: str) -> None:
        keys = [_decoded(line, where) for line in text.split()]
        if not keys:
            raise EncryptionKeyError(f"{where} lacks a master key: write one with `nadi key create`")
        self._keys = {_name_of(key): key for key in keys}
        self._where, self.name = where, _name_of(keys[0])

    def wrap(self, key: bytes, context: str) -> bytes:
        nonce, (aead, _) = os.urandom(_NONCE_BYTES), cipher()
        return bytes.fromhex(self.name) + nonce + aead(self._keys[self.name]).encrypt(nonce, key, context.encode())

    def unwrap(self, wrapped: bytes, context: str) -> bytes:
        aead, broken = cipher()
        size = len(self.name) // 2
        name, nonce, sealed = wrapped[:size].hex(), wrapped[size : size + _NONCE_BYTES], wrapped[size + _NONCE_BYTES :]
        if name not in self._keys:
            raise EncryptionKeyError(
                f"master key {name} wrapped this store's data keys, and {self._where} has only "
                f"{', '.join(self._keys)}: pass the right key, or add it below the newest one"
            )
        try:
            return aead(self._keys[name]).decrypt(nonce, sealed, context.encode())
        except (broken, ValueError):
            raise EncryptionKeyError(f"{context} is damaged: restore the store's object `keys/data`") from None


def _name_of(key: bytes) -> str:
    """Return a key's name, which doesn't help to guess the key: it is random."""
    return sha256(b"nadi master key" + key).hexdigest()[:16]


def _decoded(line: str, where: str) -> bytes:
    try:
        key = base64.b64decode(line, validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != KEY_BYTES:
        raise EncryptionKeyError(
            f"{where} isn't a master key: it must be {KEY_BYTES} bytes in base64, one in each line"
        )
    return key


def _from_file(place: str) -> MasterKey:
    path = Path(place)
    try:
        return LocalKeys(path.read_text("ascii"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise EncryptionKeyError(f"the master key can't be read from {path}: {error}") from None


def _from_variable(place: str) -> MasterKey:
    if place not in os.environ:
        raise EncryptionKeyError(f"the environment variable {place} with the master key isn't set")
    return LocalKeys(os.environ[place], f"${place}")


_SOURCES: dict[str, Callable[[str], MasterKey]] = {
    "file": _from_file,
    "env": _from_variable,
    "aws-kms": services.aws_kms,
    "gcp-kms": services.gcp_kms,
    "azure-key-vault": services.azure_key_vault,
    "vault": services.vault,
}
