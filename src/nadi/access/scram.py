"""A login by SCRAM (RFC 5802): the client proves that it knows the password without sending it."""

from __future__ import annotations

from scramp import ScramException, ScramMechanism

from nadi.access.users import WRONG_LOGIN, User, UsersFile, Verifier, verifier_of_nobody, verifiers_of
from nadi.errors import NotAuthenticatedError


class ScramLogin:
    """The exchange of one login. unknown_key: for what an unknown name gets, which looks like a user's."""

    def __init__(self, users: UsersFile, mechanism: str, unknown_key: bytes) -> None:
        self._users, self._mechanism, self._unknown_key = users, mechanism, unknown_key
        self._known: User | None = None
        self._has_begun = False
        self._server = ScramMechanism(mechanism).make_server(self._verifier)

    def _verifier(self, name: str) -> Verifier:
        self._known = self._users.find_with_password(name)
        if self._known is None:
            return verifier_of_nobody(self._mechanism, name, self._unknown_key)
        return verifiers_of(self._known.password_hash)[self._mechanism]

    @property
    def name(self) -> str:
        """The user that logs in; "" if unknown."""
        return self._known.name if self._known is not None else ""

    def reply(self, message: bytes) -> tuple[bytes, User | None]:
        """Return the reply to a message and, once it has logged in, the user; NotAuthenticatedError."""
        self._users.refresh()
        try:
            if not self._has_begun:
                self._has_begun = True
                self._server.set_client_first(message.decode())
                return self._server.get_server_first().encode(), None
            self._server.set_client_final(message.decode())
            user = self._known and self._users.find(self._known.name)
            if self._known is None or user is None or user.password_hash != self._known.password_hash:
                raise NotAuthenticatedError("the user was changed during the login")
            return self._server.get_server_final().encode(), user
        except (ScramException, ValueError):
            raise NotAuthenticatedError(WRONG_LOGIN) from None
