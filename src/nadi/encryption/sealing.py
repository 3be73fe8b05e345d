"""Seals blocks of bytes by AES-256-GCM, and opens them: the only place that encrypts what a store keeps.

    sealed block   data key u32 · salt 16 · number u64 (little-endian) · ciphertext · tag 16

Each block is opened alone. It is sealed with the key of a session, derived from a data key and the session's random
salt, and with a number that the session uses once. So no nonce is ever repeated: not after a crash, a retry or a fork,
nor by two copies of a store that are used separately. The context, which isn't stored, is authenticated: a block
doesn't open as another one.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import itertools
import os
import shutil
import struct
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from nadi.errors import EncryptionKeyError, InvalidArgumentError
from nadi.limits import KIB, MIB
from nadi.wire.fields import Buffer as Buffer

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

VARIABLE = "NADI_ENCRYPTION_KEY"  # the source of the master key, for all commands
KEY_BYTES = 32
BLOCK_BYTES = MIB  # of an object that is read in parts; stored objects depend on this: never change it
_HEADER = struct.Struct("<I16sQ")
_TAG_BYTES = 16
_SMALL_BYTES = 64 * KIB
_SESSIONS = 1_024  # whose keys are cached: each start of a process begins one
_INFO = b"nadi sealed block"
_MEMORY, _PREFIX = Path("/dev/shm"), "nadi-state-"
_NEW_S = 60.0  # a younger folder may not be locked yet


class SealBrokenError(Exception):
    """A block wasn't sealed for this context, or is damaged. The caller maps this to an error that names the place."""


class Sealing:
    """Leaves everything as it is: for stores without encryption. overhead: the bytes that sealing adds to a block.
    scratch: the folder for temporary files with a store's data; None: the system's."""

    overhead = 0
    scratch: Path | None = None

    def seal(self, block: Buffer, context: bytes) -> Buffer:
        return block

    def open(self, block: Buffer, context: bytes) -> Buffer:
        """Return the block that was sealed with that context. SealBrokenError: it is damaged, or another one.
        EncryptionKeyError: its data key isn't known."""
        return block

    def hidden(self, path: Path) -> Path:
        """Return the place for an ephemeral file or folder that would be at that path."""
        return path

    def seal_parts(self, parts: Sequence[Buffer], context: bytes) -> Sequence[Buffer]:
        """Return concatenated parts, sealed in blocks of `BLOCK_BYTES`, each with its number in the context."""
        return parts

    def open_into(self, block: Buffer, context: bytes, opened: memoryview) -> None:
        """`open` into memory of the right size."""
        opened[:] = block

    def open_parts(self, stored: Buffer, context: bytes) -> bytes:
        """Return the bytes that `seal_parts` has sealed. Raises as `open`."""
        view, size = memoryview(stored), BLOCK_BYTES + self.overhead
        blocks = (view[at : at + size] for at in range(0, len(view), size))
        return b"".join(self.open(block, block_context(context, number)) for number, block in enumerate(blocks))

    def stored_bytes(self, length: int) -> int:
        """Return the size of `length` bytes sealed by `seal_parts`.

        >>> Sealing().stored_bytes(100)
        100
        """
        return length + -(-length // BLOCK_BYTES) * self.overhead


PLAIN = Sealing()


class _Session(NamedTuple):
    """The sealing of one process with one data key. numbers: those not used yet."""

    process: int
    key: int
    salt: bytes
    cipher: AESGCM
    numbers: Iterator[int]


class DataKeys(Sealing):
    """Seals with the newest of a store's data keys, and opens with any. keys: by id, the newest last."""

    overhead = _HEADER.size + _TAG_BYTES

    def __init__(self, keys: Mapping[int, bytes]) -> None:
        self._aead, self._broken = cipher()
        self.scratch = memory_folder()
        self._cipher_of = lru_cache(_SESSIONS)(self._derived)
        self.use(keys)

    def use(self, keys: Mapping[int, bytes]) -> None:
        """Replace the keys by a later version of them: new blocks get its newest key."""
        self._keys = dict(keys)
        self._current = self._new_session()

    @property
    def count(self) -> int:
        return len(self._keys)

    def _new_session(self) -> _Session:
        key, salt = max(self._keys), os.urandom(16)
        return _Session(os.getpid(), key, salt, self._cipher_of(key, salt), itertools.count())

    def _derived(self, key: int, salt: bytes) -> AESGCM:
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        if key not in self._keys:
            raise EncryptionKeyError(f"data key {key} isn't among the keys of the store: restore `keys/data` there")
        return self._aead(HKDF(SHA256(), KEY_BYTES, salt, _INFO).derive(self._keys[key]))

    def seal(self, block: Buffer, context: bytes) -> Buffer:
        session = self._current  # once: another thread may replace it
        if session.process != os.getpid():  # a fork would repeat its parent's numbers
            session = self._current = self._new_session()
        number = next(session.numbers)
        sealed = _memory(self.overhead + len(block))
        _HEADER.pack_into(sealed, 0, session.key, session.salt, number)
        nonce = number.to_bytes(12, "little")
        session.cipher.encrypt_into(nonce, block, context, sealed[_HEADER.size :])  # without a copy or the GIL
        return sealed

    def open(self, block: Buffer, context: bytes) -> Buffer:
        opened = _memory(max(0, len(block) - self.overhead))
        self.open_into(block, context, opened)
        return opened

    def open_into(self, block: Buffer, context: bytes, opened: memoryview) -> None:
        view = memoryview(block)
        if len(view) != self.overhead + len(opened):
            raise SealBrokenError("it is too short")
        key, salt, number = _HEADER.unpack_from(view)
        try:
            self._cipher_of(key, salt).decrypt_into(
                number.to_bytes(12, "little"), view[_HEADER.size :], context, opened
            )
        except self._broken:
            raise SealBrokenError("it is damaged, or another block") from None

    def hidden(self, path: Path) -> Path:
        assert self.scratch is not None, "set at the construction"
        if path.is_relative_to(self.scratch):
            return path
        return self.scratch / blake2b(os.fsencode(path.absolute()), digest_size=16).hexdigest()

    def seal_parts(self, parts: Sequence[Buffer], context: bytes) -> Sequence[Buffer]:
        return [self.seal(block, block_context(context, number)) for number, block in enumerate(_blocks(parts))]


def block_context(context: bytes, number: int) -> bytes:
    """Return the context of a block of an object. context: of the object."""
    return b"%b/%d" % (context, number)


def _blocks(parts: Sequence[Buffer]) -> Iterator[Buffer]:
    """Yield the concatenated parts in blocks of `BLOCK_BYTES`, the last one shorter."""
    pending: list[Buffer] = []
    size = 0
    for part in parts:
        view = memoryview(part)
        while view:
            piece, view = view[: BLOCK_BYTES - size], view[BLOCK_BYTES - size :]
            pending.append(piece)
            size += len(piece)
            if size == BLOCK_BYTES:
                yield b"".join(pending)
                pending, size = [], 0
    if pending:
        yield b"".join(pending)


def _memory(size_bytes: int) -> memoryview:
    if size_bytes < _SMALL_BYTES:
        return memoryview(bytearray(size_bytes))
    import numpy as np

    return np.empty(size_bytes, np.uint8).data  # uninitialized


def cipher() -> tuple[type[AESGCM], type[Exception]]:
    """Return the cipher, and its error for anything that it didn't encrypt. InvalidArgumentError: it isn't
    installed."""
    try:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise InvalidArgumentError(
            "encryption needs the package `cryptography`: pip install 'nadi[encryption]'"
        ) from None
    return AESGCM, InvalidTag


_own: tuple[int, Path, int] | None = None  # this process, its folder in memory, and its lock


def scratch() -> Path | None:
    """Return the folder for this process's temporary files: in memory if it has a master key; None: the system's."""
    return memory_folder() if os.environ.get(VARIABLE) else None


def memory_folder() -> Path:
    """Return this process's folder in memory, which others delete once it has ended. EncryptionKeyError: a file
    system in memory is missing."""
    global _own
    if _own is None or _own[0] != os.getpid():
        if not _MEMORY.is_dir():
            raise EncryptionKeyError(
                f"an encrypted store keeps its state in memory, and {_MEMORY} is missing here: mount a tmpfs there"
            )
        for folder in _MEMORY.glob(f"{_PREFIX}*"):
            with contextlib.suppress(OSError):  # another user's, deleted, or in use
                if folder.stat().st_mtime < time.time() - _NEW_S and (lock := _locked(folder)) is not None:
                    shutil.rmtree(folder, ignore_errors=True)
                    os.close(lock)
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_MEMORY))
        lock = _locked(folder)
        assert lock is not None, "it is new"
        _own = os.getpid(), folder, lock
        atexit.register(_delete, *_own[:2])
    return _own[1]


def _delete(process: int, folder: Path) -> None:
    if process == os.getpid():
        shutil.rmtree(folder, ignore_errors=True)


def _locked(folder: Path) -> int | None:
    """Lock a folder, as long as the returned descriptor is open; None: another process has it locked."""
    lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return lock
