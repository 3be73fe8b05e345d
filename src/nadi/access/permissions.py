"""Resources, and what a caller may do on them, in Pravega's words.

    prn::/                                  the cluster: its list of scopes
    prn::/scope:S                           a scope: its lists, what is created in it
    prn::/scope:S/stream:T
    prn::/scope:S/reader-group:G
    prn::/scope:S/key-value-table:K

A grant is a pattern of resources, where `*` stands for any characters, and a permission. If several
match, the greatest wins, but NONE beats all, so that one stream can be taken out of a scope.

>>> held = Permissions.parse("prn::/scope:home/*,READ_UPDATE;prn::/scope:home/stream:diary,NONE")
>>> held.on(stream_resource("home", "meters")).name
'READ_UPDATE'
>>> held.on(stream_resource("home", "diary")).name
'NONE'
>>> held.on(scope_resource("home")).name
'NONE'
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import quote

from nadi.errors import InvalidArgumentError

CLUSTER = "prn::/"


class Permission(enum.IntEnum):
    NONE = 0
    READ = 1
    READ_UPDATE = 2


def _name(name: str) -> str:
    """Valid names unchanged; an invalid name can't pass for a part of another resource."""
    return quote(name, safe="").replace("~", "%7E")


def scope_resource(scope: str) -> str:
    return f"prn::/scope:{_name(scope)}"


def stream_resource(scope: str, stream: str) -> str:
    return f"prn::/scope:{_name(scope)}/stream:{_name(stream)}"


def reader_group_resource(scope: str, group: str) -> str:
    return f"prn::/scope:{_name(scope)}/reader-group:{_name(group)}"


def table_resource(scope: str, table: str) -> str:
    return f"prn::/scope:{_name(scope)}/key-value-table:{_name(table)}"


@dataclass(frozen=True, slots=True)
class Grant:
    """A permission on all resources that match `pattern`."""

    pattern: str
    permission: Permission

    @classmethod
    def parse(cls, text: str) -> Grant:
        """`pattern,PERMISSION`; InvalidArgumentError if it isn't that."""
        pattern, _, permission = text.strip().rpartition(",")
        pattern, permission = pattern.strip(), permission.strip()
        if permission not in Permission.__members__ or not (pattern.startswith("prn::") or pattern == "*"):
            raise InvalidArgumentError(
                f"{text[:100]!r} is not a valid grant: write it as prn::/scope:S/stream:T,READ "
                "with NONE, READ or READ_UPDATE"
            )
        return cls(pattern, Permission[permission])

    def matches(self, resource: str) -> bool:
        # piece by piece, so that a long name costs no more than its length
        first, *pieces = self.pattern.split("*")
        if not pieces:
            return resource == self.pattern
        if not resource.startswith(first):
            return False
        position = len(first)
        for piece in pieces[:-1]:
            found = resource.find(piece, position)
            if found < 0:
                return False
            position = found + len(piece)
        return len(resource) - len(pieces[-1]) >= position and resource.endswith(pieces[-1])


@dataclass(frozen=True, slots=True)
class Permissions:
    """All grants of one caller."""

    grants: tuple[Grant, ...] = ()

    @classmethod
    def parse(cls, text: str | Iterable[str]) -> Permissions:
        """Grants separated by `;`, or one by one."""
        items = text.split(";") if isinstance(text, str) else text
        return cls(tuple(Grant.parse(item) for item in items if item.strip()))

    def on(self, resource: str) -> Permission:
        held = [grant.permission for grant in self.grants if grant.matches(resource)]
        return min(held) if Permission.NONE in held else max(held, default=Permission.NONE)

    def __str__(self) -> str:
        return ";".join(f"{grant.pattern},{grant.permission.name}" for grant in self.grants)


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody who proved who they are."""

    name: str
    permissions: Permissions

    def may(self, resource: str, permission: Permission) -> bool:
        return self.permissions.on(resource) >= permission
