"""Who may do what over REST: the one place that is asked, and the names of what is asked about.

Every endpoint asks `authorise` before it does anything; `listed` asks it for each name in a list. It
raises HTTPException with 401 (no valid credentials) or 403 (they don't suffice).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum

from starlette.exceptions import HTTPException
from starlette.requests import Request

from nadi.naming import MARK_PREFIX, READER_GROUP_PREFIX

CLUSTER = "prn::/"


class Permission(Enum):
    READ = 1
    READ_UPDATE = 2


Authorise = Callable[[Request, str, Permission], Awaitable[None]]


async def allow_everything(request: Request, resource: str, permission: Permission) -> None:
    """No authentication: whoever reaches the port may do everything."""


def scope_resource(scope: str) -> str:
    return f"{CLUSTER}scope:{scope}"


def reader_group_resource(scope: str, group: str) -> str:
    return f"{scope_resource(scope)}/reader-group:{group}"


def stream_resource(scope: str, stream: str) -> str:
    """A stream's name for access; internal streams go by what they belong to.

    >>> stream_resource("home", "meters"), stream_resource("home", "_MARKmeters")
    ('prn::/scope:home/stream:meters', 'prn::/scope:home/stream:meters')
    >>> stream_resource("home", "_RGreaders")
    'prn::/scope:home/reader-group:readers'
    """
    if stream.startswith(READER_GROUP_PREFIX):
        return reader_group_resource(scope, stream.removeprefix(READER_GROUP_PREFIX))
    return f"{scope_resource(scope)}/stream:{stream.removeprefix(MARK_PREFIX)}"


async def listed(authorise: Authorise, request: Request, resource: str) -> bool:
    """Whether the caller may see this name in a list."""
    try:
        await authorise(request, resource, Permission.READ)
    except HTTPException as error:
        if error.status_code == 403:
            return False
        raise
    return True
