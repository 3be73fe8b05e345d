"""Mapping between errors and gRPC codes, for errors without a status in an RPC's reply.

Both official clients retry UNAVAILABLE and RESOURCE_EXHAUSTED, but not NOT_FOUND and INVALID_ARGUMENT.

>>> code_of(KeyError("ours")), kind_of("ABORTED").__name__
('INTERNAL', 'ConflictError')
"""

from __future__ import annotations

from nadi.errors import (
    ConflictError,
    EpochExpiredError,
    InvalidArgumentError,
    NadiError,
    NotAuthenticatedError,
    NotFoundError,
    PermissionDeniedError,
    QuotaExceededError,
    RequestTimeoutError,
    StorageFullError,
    UnavailableError,
)

CODES: dict[type[NadiError], str] = {  # the first matching type counts
    NotFoundError: "NOT_FOUND",
    InvalidArgumentError: "INVALID_ARGUMENT",
    RequestTimeoutError: "DEADLINE_EXCEEDED",
    StorageFullError: "RESOURCE_EXHAUSTED",
    UnavailableError: "UNAVAILABLE",
    ConflictError: "FAILED_PRECONDITION",
    NotAuthenticatedError: "UNAUTHENTICATED",
    PermissionDeniedError: "PERMISSION_DENIED",
    EpochExpiredError: "OUT_OF_RANGE",
    QuotaExceededError: "ABORTED",  # which clients don't retry
}
_ALSO = {"ABORTED": ConflictError}  # from other controllers, and if the text doesn't say that a quota is exceeded
_KINDS: dict[str, type[NadiError]] = {code: kind for kind, code in CODES.items()} | _ALSO


def code_of(error: Exception) -> str:
    """Return the code for an error."""
    return next((code for kind, code in CODES.items() if isinstance(error, kind)), "INTERNAL")


def kind_of(code: str, text: str = "") -> type[NadiError] | None:
    """Return the error class for a code and its text, or None."""
    return QuotaExceededError if text.startswith("quota exceeded: ") else _KINDS.get(code)
