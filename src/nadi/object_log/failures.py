"""What an object store's errors mean, in words that have nothing of its credentials.

`obstore`'s own texts have: S3 sends back the session's token that has expired, and an Azure address can hold its
signature. So what is raised instead is made of the answer's status, code and message, without queries and secrets.
"""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Mapping
from typing import TypeVar

from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, UnauthenticatedError

from nadi.errors import StorageFullError, UnavailableError

T = TypeVar("T")
FOREIGN = (BaseError, OSError)  # NotFound is the builtin FileNotFoundError
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([A-Za-z0-9.]{1,60})</Code>|\(code: ([A-Za-z0-9.]{1,60})\)")
_MESSAGE = re.compile(r"<Message>([^<]{1,400})")
_KIND = re.compile(r"HttpError \{\s*kind: (\w+)")
_PRIVATE = re.compile(r"SECRET|TOKEN|KEY|PASSWORD|SAS|SIGNATURE|CREDENTIAL", re.IGNORECASE)
_QUERY = re.compile(r"\?\S+|//[^/\s]*@")
_PAIR = re.compile(r"(?i)\b(sig|signature|\w*token\w*|\w*secret\w*|\w*password|authorization|\w+_key)(\s*[=:]\s*)\S+")
_TAGGED = re.compile(r"(?i)<(\w*(?:token|secret|signature|signed|password)[\w-]*)>[^<]*")
_OF_ENVIRONMENT = ("AWS_", "GOOGLE_", "AZURE_")
_LONGEST = 300
_LEAST_SECRET = 6  # shorter values would blot out the words of a text

_EXPIRED = {"ExpiredToken", "InvalidToken", "TokenRefreshRequired", "RequestExpired", "RequestTimeTooSkewed"}
_UNKNOWN_CALLER = {"InvalidAccessKeyId", "SignatureDoesNotMatch", "AuthenticationFailed", "InvalidAuthenticationInfo"}
_NO_BUCKET = {"NoSuchBucket", "ContainerNotFound", "FilesystemNotFound"}
_NO_ROOM = {"XMinioStorageFull", "InsufficientStorage", "QuotaExceeded", "InsufficientCapacity"}
_TOO_FAST = {"SlowDown", "ServerBusy", "TooManyRequests", "RequestLimitExceeded", "Throttling", "ThrottlingException"}
_PASSING = {"RequestTimeout", "OperationTimedOut", "InternalError", "OperationAborted", "ConditionalRequestConflict"}
_CREDENTIALS_SERVERS = re.compile(r"//169\.254\.|//metadata\.google\.internal|//\[fd00:ec2")
_KINDS = {
    "Connect": "it can't be reached",
    "Timeout": "no answer in time",
    "Request": "the connection broke",
    "Interrupted": "the connection broke",
}


class RefusedError(UnavailableError):
    """The store is there and refuses: credentials, permissions, a bucket that isn't there, a request that it doesn't
    know. A server that starts gives up with these words; one that runs tries again, for somebody may mend it."""


def secrets_of(config: Mapping[str, str]) -> tuple[str, ...]:
    """The values that no text may have, longest first, from a store's configuration and the environment."""
    environment = {name: value for name, value in os.environ.items() if name.startswith(_OF_ENVIRONMENT)}
    known = [*config.items(), *environment.items()]
    private = {value for name, value in known if _PRIVATE.search(name) and len(value) >= _LEAST_SECRET}
    return tuple(sorted(private, key=len, reverse=True))


def without_secrets(text: str, secrets: tuple[str, ...]) -> str:
    """In a line, without the listing of an error's parts that `obstore` appends, and not too long.

    >>> without_secrets("PUT http://host/a?sig=abc failed,\\n token: xyz", ())
    'PUT http://host/a failed, token: …'
    """
    text = " ".join(text.partition("Debug source")[0].split())
    for secret in secrets:
        text = text.replace(secret, "…")
    text = _TAGGED.sub(r"<\1>…", text)
    text = _PAIR.sub(r"\1\2…", _QUERY.sub(lambda found: "" if found[0].startswith("?") else "//", text))
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"


def is_no_bucket(error: Exception) -> bool:
    """Whether a thing isn't found because nothing is: "nothing has that name" would be wrong."""
    coded = _CODE.search(str(error))
    return coded is not None and coded[1] in _NO_BUCKET


def was_unanswered(error: Exception) -> bool:
    """Whether the store said nothing: asking it more about the same thing would take as long again."""
    return _KIND.search(str(error)) is not None and _STATUS.search(str(error)) is None


def public(config: Mapping[str, str]) -> dict[str, str]:
    """What of a store's configuration may be written down: no keys, tokens and the like.

    >>> public({"endpoint": "http://store:9000", "secret_access_key": "x"})
    {'endpoint': 'http://store:9000'}
    """
    return {name: value for name, value in config.items() if not _PRIVATE.search(name)}


async def asked(what: str, work: Awaitable[T], secrets: tuple[str, ...]) -> T:
    """What the store answers, or `told`'s error. what: as in "the object store can't store log/0/1"."""
    try:
        return await work
    except FOREIGN as error:
        problem = told(what, error, secrets)
    raise problem  # here, not above, so that it has no context: a log would write that, too


def told(what: str, error: Exception, secrets: tuple[str, ...]) -> UnavailableError:
    text = str(error)
    if _CREDENTIALS_SERVERS.search(text):
        return RefusedError(
            f"the object store can't {what}: there are no credentials here, and no service of this machine gives any; "
            "set the environment variables of the store, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    found, coded, said = _STATUS.search(text), _CODE.search(text), _MESSAGE.search(text)
    status = int(found[1]) if found else 0
    code = (coded[1] or coded[2]) if coded else ""
    named = " ".join(filter(None, (str(status or ""), code)))
    message = without_secrets(said[1], secrets) if said else ""
    answer = f" ({named}{': ' if named and message else ''}{message})" if named or message else ""
    kind = _kind(text, error, status, code)
    if kind is not None:
        return kind[0](f"the object store can't {what}: {kind[1]}{answer}")
    if status:
        return UnavailableError(f"the object store can't {what}: it has an error of its own{answer}; it is tried again")
    transport = _KIND.search(text)
    if transport:
        said_of_it = _KINDS.get(transport[1], "the connection failed")
        return UnavailableError(f"the object store can't {what}: {said_of_it}; it is tried again")
    return UnavailableError(f"the object store can't {what}: {without_secrets(text, secrets)}")


def _kind(text: str, error: Exception, status: int, code: str) -> tuple[type[UnavailableError], str] | None:
    if code in _EXPIRED:
        return RefusedError, "its credentials have expired, or the clock here is wrong; renew them"
    if code in _UNKNOWN_CALLER or status == 401 or isinstance(error, UnauthenticatedError):
        return RefusedError, "it doesn't know these credentials; set those of an account that may use it"
    if code in _NO_BUCKET or isinstance(error, FileNotFoundError):
        return RefusedError, "there is no such bucket; create it, or correct the URL"
    if code in _NO_ROOM or status == 507 or "No space left" in text:
        return StorageFullError, "it is full; free space there"
    if code in _TOO_FAST or status in (429, 503):
        return UnavailableError, "it wants fewer requests for now; it is tried again, later each time"
    if status == 403 or code == "AccessDenied" or isinstance(error, PermissionDeniedError):
        return RefusedError, (
            "it forbids that; give the server's account the permission to get, put, list and delete, and its bucket "
            "neither object lock nor retention"
        )
    if status == 409 or isinstance(error, AlreadyExistsError) or code in _PASSING:
        return UnavailableError, "somebody else is changing it right now; it is tried again"
    if 300 <= status < 500 or status == 501:
        return RefusedError, "it doesn't take this request; see that the URL, region and endpoint are right"
    return None
