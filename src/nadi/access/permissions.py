"""Define resources and grants, in Pravega's syntax.

    prn::/                                  the cluster: its list of scopes
    prn::/audit                             the audit stream
    prn::/scope:S                           a scope: its lists, and creation in it
    prn::/scope:S/stream:T
    prn::/scope:S/reader-group:G
    prn::/scope:S/key-value-table:K

A grant is a pattern of resources, where `*` matches any characters, and a permission. If several grants match, the
highest permission applies, but NONE overrides all, so that a single stream can be excluded.

>>> permissions = Permissions.parse("prn::/scope:home/*,READ_UPDATE;prn::/scope:home/stream:diary,NONE")
>>> permissions.on(stream_resource("home", "meters")).name
'READ_UPDATE'
>>> permissions.on(stream_resource("home", "diary")).name
'NONE'
>>> permissions.on(scope_resource("home")).name
'NONE'
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import quote

from nadi.errors import InvalidArgumentError

CLUSTER = "prn::/"
AUDIT = "prn::/audit"


class Permission(enum.IntEnum):
    NONE = 0
    READ = 1
    READ_UPDATE = 2


def quoted(name: str) -> str:
    """Quote a name so that an invalid one can't be mistaken for part of another resource; valid names don't change."""
    return quote(name, safe="").replace("~", "%7E")


def scope_resource(scope: str) -> str:
    return f"prn::/scope:{quoted(scope)}"


def stream_resource(scope: str, stream: str) -> str:
    return f"prn::/scope:{quoted(scope)}/stream:{quoted(stream)}"


def reader_group_resource(scope: str, group: str) -> str:
    return f"prn::/scope:{quoted(scope)}/reader-group:{quoted(group)}"


def table_resource(scope: str, table: str) -> str:
    return f"prn::/scope:{quoted(scope)}/key-value-table:{quoted(table)}"


@dataclass(frozen=True, slots=True)
class Grant:
    """A permission on all resources that match `pattern`."""

    pattern: str
    permission: Permission

    @classmethod
    def parse(cls, text: str) -> Grant:
        """Parse `pattern,PERMISSION`; raise InvalidArgumentError if the text is invalid."""
        pattern, _, permission = text.strip().rpartition(",")
        pattern, permission = pattern.strip(), permission.strip()
        if permission not in Permission.__members__ or not (pattern.startswith("prn::") or pattern == "*"):
            raise InvalidArgumentError(
                f"{text[:100]!r} is not a valid grant: write it as prn::/scope:S/stream:T,READ "
                "with NONE, READ or READ_UPDATE"
            )
        return cls(pattern, Permission[permission])

    def matches(self, resource: str) -> bool:
        # piece by piece, so that the cost is linear in the length of the name
        first, *pieces = self.pattern.split("*")
        if not pieces:
            return resource == self.pattern
        if not resource.startswith(first):
            return False
        position = len(first)
        for piece in pieces[:-1]:
            start = resource.find(piece, position)
            if start < 0:
                return False
            position = start + len(piece)
        return len(resource) - len(pieces[-1]) >= position and resource.endswith(pieces[-1])


@dataclass(frozen=True, slots=True)
class Permissions:
    """All grants of one caller."""

    grants: tuple[Grant, ...] = ()

    @classmethod
    def parse(cls, text: str | Iterable[str]) -> Permissions:
        """Parse grants, separated by `;` or as a list."""
        items = text.split(";") if isinstance(text, str) else text
        return cls(tuple(Grant.parse(item) for item in items if item.strip()))

    def on(self, resource: str) -> Permission:
        matching = [grant.permission for grant in self.grants if grant.matches(resource)]
        return Permission.NONE if Permission.NONE in matching else max(matching, default=Permission.NONE)

    def __str__(self) -> str:
        return ";".join(f"{grant.pattern},{grant.permission.name}" for grant in self.grants)


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated caller. is_server: it is a server of this cluster itself."""

    name: str
    permissions: Permissions
    is_server: bool = False

    def may(self, resource: str, permission: Permission) -> bool:
        return self.permissions.on(resource) >= permission
