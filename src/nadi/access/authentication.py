"""Authenticate requests: turn the `authorization` of a gRPC or REST request into a Caller.

    Basic <base64 of user:password>     checked against the users file
    Bearer <JSON Web Token>             checked against the issuer's keys

A request without one is by the user of its connection's client certificate, if any (`nadi.access.tls`).

Checking a password deliberately takes 0.1 to 0.4 s, so two threads do it. Other logins wait, a limited number per
address, with addresses in rotation, so that password guessing doesn't block other addresses. Correct credentials are
cached (by a keyed hash) until the user's password changes.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import logging
import secrets
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from cachetools import LRUCache, TTLCache

from nadi.access.audit import AuditedAct, AuditTrail
from nadi.access.fair_shares import FairQueue, Shares
from nadi.access.permissions import Caller, Permission, Permissions
from nadi.access.users import WRONG_LOGIN, User, UsersFile, hash_of_no_password, is_password
from nadi.errors import InvalidArgumentError, NotAuthenticatedError, PermissionDeniedError, UnavailableError
from nadi.limits import (
    AUDIT_LOGIN_S,
    AUDIT_LOGINS,
    AUTHORIZATION_MAX_CHARS,
    LOGIN_FAILED_S,
    LOGINS_AT_ONCE,
    LOGINS_CACHED,
    LOGINS_WAITING,
)
from nadi.throttled_log import SeldomWarning

if TYPE_CHECKING:
    from nadi.access.bearer import BearerKeys, BearerSettings
    from nadi.access.scram import ScramLogin
    from nadi.access.tls import ClientCertificates

log = logging.getLogger(__name__)

_NEEDED = "this server requires a user and password, or a bearer token: set them as docs/security.md describes"
_OWN = "nadi-own"
_TOO_MANY = "too many logins from this address are being checked: try again soon"


class Gate:
    """Authenticator of callers. `failed_logins` and `refusals` count since the start. certificates: None if clients
    have none. audit: records logins and refused callers, and what callers do; None without an audit stream."""

    def __init__(
        self,
        users: Path | None,
        bearer: BearerSettings | None = None,
        certificates: ClientCertificates | None = None,
    ) -> None:
        if users is None and bearer is None:
            raise InvalidArgumentError("access control requires a users file or keys for bearer tokens")
        self._users = UsersFile(users) if users is not None else None
        self._certificates = certificates
        self._bearer: BearerKeys | None = None
        if bearer is not None:
            from nadi.access.bearer import BearerKeys  # imports cryptography, which most servers don't need

            self._bearer = BearerKeys(bearer)
        self._known: LRUCache[bytes, User] = LRUCache(LOGINS_CACHED)
        self._checking: dict[bytes, _Check] = {}
        self._shares, self._permits = Shares(LOGINS_WAITING), FairQueue(LOGINS_AT_ONCE)
        self._digest_key = secrets.token_bytes(32)
        self.own_authorization = f"{_OWN} {secrets.token_urlsafe(32)}"  # has all rights; known to this server alone
        self._dummy_hash = hash_of_no_password()  # unknown users take the same time to check
        self._threads = ThreadPoolExecutor(LOGINS_AT_ONCE, "nadi logins")
        self.failed_logins = 0
        self.refusals = 0
        self.audit: AuditTrail | None = None
        self._recorded: TTLCache[tuple[str, str], None] = TTLCache(AUDIT_LOGINS, AUDIT_LOGIN_S)
        self._report = SeldomWarning(log, "failed logins: %d, the last from %s: %s")

    @property
    def needs_certificate(self) -> bool:
        return self._certificates is not None

    def begin_audit(self, audit: AuditTrail) -> None:
        """Record what callers do from now on."""
        self.audit = audit
        if self._users is not None:
            self._users.on_changed = lambda names: audit.note(
                AuditedAct(action="users.change", subject=names, user="", door="users file")
            )

    def share_own(self, secret: str) -> None:
        """Accept what other servers of the cluster, which know the secret, ask as this server itself."""
        self.own_authorization = f"{_OWN} {secret}"

    async def caller(self, authorization: str | None, peer: str = "") -> Caller:
        """Return the sender of `authorization`; raise NotAuthenticatedError if it is missing or wrong."""
        address = peer.rpartition(":")[0]
        with self._refusals(_tried(authorization), peer):
            caller = await self._caller(authorization, address)
        self._logged_in(caller, address)
        return caller

    def certified(self, certificate: bytes, peer: str = "") -> Caller:
        """Return the user of a client certificate (DER); NotAuthenticatedError if it isn't a user's."""
        assert self._certificates is not None, "the handshake asked for it"
        with self._refusals("", peer):
            caller = self._user(self._certificates.user_of(certificate))
        self._logged_in(caller, peer.rpartition(":")[0])
        return caller

    def authorization_of(self, certificate: bytes, peer: str = "") -> str:
        """Return what stands for a client certificate in a request without an `authorization`, here and on the other
        servers of the cluster; raise as `certified`."""
        return f"{self.own_authorization} {quote(self.certified(certificate, peer).name, safe='')}"

    @contextmanager
    def _refusals(self, name: str, peer: str) -> Iterator[None]:
        """Count and record a refused login by that name."""
        try:
            yield
        except NotAuthenticatedError as error:
            self._refused_login(name, peer.rpartition(":")[0], peer or "unknown", error)
            raise

    def _refused_login(self, name: str, address: str, peer: str, error: Exception) -> None:
        self.failed_logins += 1
        self._report(peer, error)
        if self.audit is not None:
            self.audit.note(AuditedAct(action="login", subject=name, user=name, address=address), "refused", str(error))

    def _logged_in(self, caller: Caller, address: str) -> None:
        """Record the first login of a caller from an address, as requests log in again and again."""
        if self.audit is not None and not caller.is_server and (caller.name, address) not in self._recorded:
            self._recorded[caller.name, address] = None
            self.audit.note(AuditedAct(action="login", subject=caller.name, user=caller.name, address=address))

    async def authorized(
        self, authorization: str | None, resource: str, permission: Permission | None, peer: str = ""
    ) -> Caller:
        """Return the caller if it has `permission` on `resource`; otherwise, and always for None, raise
        PermissionDeniedError."""
        caller = await self.caller(authorization, peer)
        self.require(caller, resource, permission)
        return caller

    def require(self, caller: Caller, resource: str, permission: Permission | None) -> None:
        if permission is None:
            self.refusals += 1
            if self.audit is not None:
                act = AuditedAct(action="access", subject=resource, user=caller.name)
                self.audit.note(act, "refused", "only the server itself may do this")
            raise PermissionDeniedError("only the server itself may do this")
        if not caller.may(resource, permission):
            self.refusals += 1
            if self.audit is not None:
                act = AuditedAct(action="access", subject=resource, user=caller.name)
                self.audit.note(act, "refused", f"it requires {permission.name}")
            raise PermissionDeniedError(f"the request requires {permission.name} on {resource[:700]}: ask for a grant")

    def current(self, caller: Caller) -> Caller:
        """Return a user, logged in before, with its present permissions; NotAuthenticatedError if it was removed."""
        return self._user(caller.name)

    def _user(self, name: str) -> Caller:
        assert self._users is not None, "it has logged in"
        self._users.refresh()
        user = self._users.find(name)
        if user is None:
            raise NotAuthenticatedError(f"the users file lacks {name[:200]!r}: add this user with `nadi passwd`")
        return Caller(user.name, user.permissions)

    def begin_scram(self, mechanism: str, unknown_key: bytes) -> ScramLogin:
        """Return a new login by one of the mechanisms of `users.MECHANISMS`. unknown_key: keeps what an outsider gets
        for unknown names the same."""
        from nadi.access.scram import ScramLogin  # imports scramp, which most servers don't need

        if self._users is None:
            raise NotAuthenticatedError(_NEEDED)
        return ScramLogin(self._users, mechanism, unknown_key)

    async def continue_scram(self, login: ScramLogin, message: bytes, address: str) -> tuple[bytes, Caller | None]:
        """Return the reply to a message and, once it has logged in, the caller; NotAuthenticatedError, some time
        later."""
        if not self._shares.enter(address):
            raise UnavailableError(_TOO_MANY)
        try:
            reply, user = login.reply(message)
        except NotAuthenticatedError as error:
            self._refused_login(login.name, address, address or "unknown", error)
            async with self._permits.of(address):
                await asyncio.sleep(LOGIN_FAILED_S)
            raise
        finally:
            self._shares.leave(address)
        if user is None:
            return reply, None
        caller = Caller(user.name, user.permissions)
        self._logged_in(caller, address)
        return reply, caller

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _caller(self, authorization: str | None, address: str) -> Caller:
        if not authorization:
            raise NotAuthenticatedError(_NEEDED)
        if len(authorization) > AUTHORIZATION_MAX_CHARS:
            raise NotAuthenticatedError(f"the authorization is longer than {AUTHORIZATION_MAX_CHARS:,} characters")
        method, _, value = authorization.partition(" ")
        if method == _OWN:
            secret, _, user = value.partition(" ")
            own = f"{_OWN} {secret}".encode("utf-8", "surrogatepass")
            if not hmac.compare_digest(own, self.own_authorization.encode()):
                raise NotAuthenticatedError(_NEEDED)
            if user:
                return self._user(unquote(user))
            return Caller("nadi", Permissions.parse("*,READ_UPDATE"), is_server=True)
        method, value = method.lower(), value.strip()
        if method == "basic" and self._users is not None:
            return await self._basic(self._users, value, address)
        if method == "bearer" and self._bearer is not None:
            return await self._bearer.caller(value)
        raise NotAuthenticatedError(_NEEDED)

    async def _basic(self, users: UsersFile, value: str, address: str) -> Caller:
        users.refresh()
        digest = hmac.digest(self._digest_key, value.encode("utf-8", "surrogatepass"), "sha256")
        known = self._known.get(digest)
        if known is not None:
            user = users.find(known.name)
            if user is not None and user.password_hash == known.password_hash:
                return Caller(user.name, user.permissions)
            del self._known[digest]
        check = self._checking.get(digest)
        if check is None:
            check = self._begin(users, digest, value, address)
        try:
            return await check.result()
        finally:
            if check.is_abandoned and self._checking.get(digest) is check:
                del self._checking[digest]  # cancelled, so the next caller can't join it

    def _begin(self, users: UsersFile, digest: bytes, value: str, address: str) -> _Check:
        if not self._shares.enter(address):
            raise UnavailableError(_TOO_MANY)
        check = self._checking[digest] = _Check(self._log_in(users, digest, value, address))

        def is_over(_: object) -> None:
            self._shares.leave(address)
            if self._checking.get(digest) is check:
                del self._checking[digest]

        check.task.add_done_callback(is_over)
        return check

    async def _log_in(self, users: UsersFile, digest: bytes, value: str, address: str) -> Caller:
        try:
            name, colon, password = base64.b64decode(value, validate=True).decode().partition(":")
        except (binascii.Error, ValueError):
            raise NotAuthenticatedError("the Basic credentials must be the base64 of user:password") from None
        async with self._permits.of(address):
            user = users.find_with_password(name) if colon else None
            stored_hash = user.password_hash if user is not None else self._dummy_hash
            loop = asyncio.get_running_loop()
            is_correct = await loop.run_in_executor(self._threads, is_password, password, stored_hash)
        if user is None or not is_correct:
            raise NotAuthenticatedError(WRONG_LOGIN)
        self._known[digest] = user
        return Caller(user.name, user.permissions)


class _Check:
    """The check of one user and password, shared by all its waiters; cancelled when none is left."""

    def __init__(self, work: Coroutine[None, None, Caller]) -> None:
        self.task = asyncio.create_task(work)
        self.task.add_done_callback(_retrieve_error)
        self._waiting = 0

    @property
    def is_abandoned(self) -> bool:
        """Whether the check has no waiters left."""
        return not self._waiting

    async def result(self) -> Caller:
        self._waiting += 1
        try:
            return await asyncio.shield(self.task)
        finally:
            self._waiting -= 1
            if not self._waiting:
                self.task.cancel()


def _tried(authorization: str | None) -> str:
    """Return the user that Basic credentials name, as far as they can be read."""
    method, _, value = (authorization or "")[:AUTHORIZATION_MAX_CHARS].partition(" ")
    if method.lower() != "basic":
        return ""
    try:
        return base64.b64decode(value, validate=True).decode().partition(":")[0]
    except (binascii.Error, ValueError):
        return ""


def _retrieve_error(task: asyncio.Task[Caller]) -> None:
    """Mark the error as retrieved, so that asyncio doesn't complain if all waiters left."""
    if not task.cancelled():
        task.exception()
