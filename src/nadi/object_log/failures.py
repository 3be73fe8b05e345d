"""Maps an object store's errors to messages without credentials.

`obstore`'s own messages leak them: S3 returns the expired session token, and an Azure address can contain its
signature. So messages are built from the response's status, code and message, without queries and secrets.
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
_LEAST_SECRET = 6  # redacting shorter values would mangle ordinary words

_EXPIRED = {"ExpiredToken", "InvalidToken", "TokenRefreshRequired", "RequestExpired", "RequestTimeTooSkewed"}
_UNKNOWN_CALLER = {"InvalidAccessKeyId", "SignatureDoesNotMatch", "AuthenticationFailed", "InvalidAuthenticationInfo"}
_NO_BUCKET = {"NoSuchBucket", "ContainerNotFound", "FilesystemNotFound"}
_FULL_CODES = {"XMinioStorageFull", "InsufficientStorage", "QuotaExceeded", "InsufficientCapacity"}
_TOO_FAST = {"SlowDown", "ServerBusy", "TooManyRequests", "RequestLimitExceeded", "Throttling", "ThrottlingException"}
_PASSING = {"RequestTimeout", "OperationTimedOut", "InternalError", "OperationAborted", "ConditionalRequestConflict"}
_CREDENTIALS_SERVERS = re.compile(r"//169\.254\.|//metadata\.google\.internal|//\[fd00:ec2")
_KINDS = {
    "Connect": "it is unreachable",
    "Timeout": "it didn't answer in time",
    "Request": "the connection broke",
    "Interrupted": "the connection broke",
}


class RefusedError(UnavailableError):
    """Error of a store that responds but refuses: credentials, permissions, a missing bucket, an unsupported request. A
    starting server exits with this message; a running one retries, because an operator may fix the cause."""


def secrets_of(config: Mapping[str, str]) -> tuple[str, ...]:
    """Return the values to redact, longest first, from a store's configuration and the environment."""
    environment = {name: value for name, value in os.environ.items() if name.startswith(_OF_ENVIRONMENT)}
    known = [*config.items(), *environment.items()]
    private = {value for name, value in known if _PRIVATE.search(name) and len(value) >= _LEAST_SECRET}
    return tuple(sorted(private, key=len, reverse=True))


def without_secrets(text: str, secrets: tuple[str, ...]) -> str:
    """Return the text on one line, redacted and shortened, without the debug details that `obstore` appends.

    >>> without_secrets("PUT http://host/a?sig=abc failed,\\n token: xyz", ())
    'PUT http://host/a failed, token: …'
    """
    text = " ".join(text.partition("Debug source")[0].split())
    for secret in secrets:
        text = text.replace(secret, "…")
    text = _TAGGED.sub(r"<\1>…", text)
    text = _PAIR.sub(r"\1\2…", _QUERY.sub(lambda match: "" if match[0].startswith("?") else "//", text))
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"


def is_no_bucket(error: Exception) -> bool:
    """Return whether an object isn't found because its bucket doesn't exist."""
    coded = _CODE.search(str(error))
    return coded is not None and coded[1] in _NO_BUCKET


def was_unanswered(error: Exception) -> bool:
    """Return whether the store sent no response: further queries about the same object would take as long."""
    return _KIND.search(str(error)) is not None and _STATUS.search(str(error)) is None


def public(config: Mapping[str, str]) -> dict[str, str]:
    """Return a store's configuration without keys, tokens and other secrets.

    >>> public({"endpoint": "http://store:9000", "secret_access_key": "x"})
    {'endpoint': 'http://store:9000'}
    """
    return {name: value for name, value in config.items() if not _PRIVATE.search(name)}


async def map_errors(what: str, work: Awaitable[T], secrets: tuple[str, ...]) -> T:
    """Await `work`, mapping errors by `public_error`. what: as in "the object store can't store log/0/1"."""
    try:
        return await work
    except FOREIGN as error:
        problem = public_error(what, error, secrets)
    raise problem  # here, without the original error as context, which would be logged


def public_error(what: str, error: Exception, secrets: tuple[str, ...]) -> UnavailableError:
    text = str(error)
    if _CREDENTIALS_SERVERS.search(text):
        return RefusedError(
            f"the object store can't {what}: credentials are missing; set the environment variables of the "
            "store, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    status_match, code_match, message_match = _STATUS.search(text), _CODE.search(text), _MESSAGE.search(text)
    status = int(status_match[1]) if status_match else 0
    code = (code_match[1] or code_match[2]) if code_match else ""
    summary = " ".join(filter(None, (str(status or ""), code)))
    message = without_secrets(message_match[1], secrets) if message_match else ""
    answer = f" ({summary}{': ' if summary and message else ''}{message})" if summary or message else ""
    kind = _kind(text, error, status, code)
    if kind is not None:
        return kind[0](f"the object store can't {what}: {kind[1]}{answer}")
    if status:
        return UnavailableError(f"the object store can't {what}: internal error{answer}; will be retried")
    transport = _KIND.search(text)
    if transport:
        reason = _KINDS.get(transport[1], "the connection failed")
        return UnavailableError(f"the object store can't {what}: {reason}; will be retried")
    return UnavailableError(f"the object store can't {what}: {without_secrets(text, secrets)}")


def _kind(text: str, error: Exception, status: int, code: str) -> tuple[type[UnavailableError], str] | None:
    if code in _EXPIRED:
        return RefusedError, "the credentials have expired, or this machine's clock is wrong; renew or correct them"
    if code in _UNKNOWN_CALLER or status == 401 or isinstance(error, UnauthenticatedError):
        return RefusedError, "unknown credentials; use those of an account with access to the bucket"
    if code in _NO_BUCKET or isinstance(error, FileNotFoundError):
        return RefusedError, "the bucket doesn't exist; create it, or correct the URL"
    if code in _FULL_CODES or status == 507 or "No space left" in text:
        return StorageFullError, "it is full; free space"
    if code in _TOO_FAST or status in (429, 503):
        return UnavailableError, "it limits the request rate; will be retried with increasing delays"
    if status == 403 or code == "AccessDenied" or isinstance(error, PermissionDeniedError):
        return RefusedError, (
            "permission denied; allow the server's account to get, put, list and delete objects, and configure "
            "neither object lock nor retention on the bucket"
        )
    if status == 409 or isinstance(error, AlreadyExistsError) or code in _PASSING:
        return UnavailableError, "conflict with a concurrent change; will be retried"
    if 300 <= status < 500 or status == 501:
        return RefusedError, "it rejected the request; check the URL, region and endpoint"
    return None
