"""Define the rights on names in one table, for gRPC, REST and the segment store.

Most names are chosen by users, for streams and tables. Other names are internal and allow callers only the requests
that clients need; all other requests are reserved for the server, whose token permits everything. For each kind of
name, `RIGHTS` defines the permission and the resource that a request or a token requires, the permission that the token
contains, and the acts that it allows on segments. Anything not in the table is reserved for the server.

The complete name determines its kind: a name that only starts like a kind, or combines several, is unknown, and so is
any other name with a leading underscore; unknown names are reserved for the server, too.

    _MARK<stream>        watermarks. The stream's readers read them; Java's request write access without using it
    _RG<group>           the state of a Java reader group: its readers write and truncate it
    _RG<group>_kvtable   the state of a nadi reader group: its readers write it, and the group's creator creates it
    <name>_kvtable       a table of a user or of Python's reader groups, or a partition of a key-value table
    _bookmarks_kvtable   a table that nadi's clients share in a scope, like the others of CLIENT_TABLES
    _system/audit        the audit stream: auditors read it, only the server writes and truncates it
    _system/...          the controller's tables
    _cluster/scrub       the scrub of the server, for callers that may create scopes

The segment of a transaction, or of a large event in flight, has its stream's name with a suffix. Callers that may only
read the stream must not read such uncommitted data, and only the server merges transactions.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from nadi.access.permissions import AUDIT, CLUSTER, Permission, reader_group_resource, scope_resource, stream_resource
from nadi.naming import (
    AUDIT_STREAM,
    CLIENT_TABLES,
    CLUSTER_SCOPE,
    INTERNAL_SCOPE,
    MARK_PREFIX,
    READER_GROUP_PREFIX,
    SCRUB,
    TABLE_SUFFIX,
    segment_name,
    segment_of,
)


class NameKind(enum.Enum):
    """Kinds of names, by their owner."""

    STREAM = "a stream"
    MARKS = "watermarks"
    GROUP = "a Java reader group's state"
    GROUP_TABLE = "a reader group's state"
    TABLE = "a table"
    SHARED_TABLE = "a scope's shared table"
    AUDIT = "the audit stream"
    SYSTEM = "internal to the server"
    CLUSTER = "an operation of the whole server"
    UNKNOWN = "an unknown internal name"


class SegmentPart(enum.Enum):
    """The segments of a name, by their role."""

    WHOLE = "the name's segments"
    TRANSACTION = "segments of its transactions"
    TRANSIENT = "segments of large events in flight"


class Act(enum.Enum):
    """An operation on a name, at the controller or on its segments."""

    INSPECT = "describe it, list it"
    END = "seal it, delete it"
    CHANGE = "scale, truncate, configure it, begin and end transactions"
    CREATE = "create it"
    READ = "read it"
    WRITE = "append to it, change its attributes and entries"
    FREE_SPACE = "change its entries even on a full disk"  # only for the server, which owns the reserved space
    TRUNCATE = "truncate it"
    SEAL = "seal a segment"
    DELETE = "delete a segment"
    MERGE = "merge it into another segment"


@dataclass(frozen=True, slots=True)
class Need:
    """A required permission on a resource; None if reserved for the server. `token`: the issued token's permission."""

    resource: str
    permission: Permission | None
    token: Permission = Permission.NONE


@dataclass(frozen=True, slots=True)
class Rights:
    """The rights on one kind of name.

    resource: maps scope and name to the resource. requests: the permission required by a request at the controller (for
    creation, on the scope). read, write: the permission required to get such a token, and the token's permission.
    segments: the token's permission required by an act on segments.
    """

    resource: Callable[[str, str], str]
    requests: Mapping[Act, Permission]
    read: tuple[Permission, Permission] | None
    write: tuple[Permission, Permission] | None
    segments: Mapping[SegmentPart, Mapping[Act, Permission]] = field(default_factory=dict)


_READ, _UPDATE = Permission.READ, Permission.READ_UPDATE


def _of_group(scope: str, name: str) -> str:
    return reader_group_resource(scope, name.removeprefix(READER_GROUP_PREFIX).removesuffix(TABLE_SUFFIX))


RIGHTS: dict[NameKind, Rights] = {
    NameKind.STREAM: Rights(
        resource=stream_resource,
        requests={Act.INSPECT: _READ, Act.END: _UPDATE, Act.CHANGE: _UPDATE, Act.CREATE: _UPDATE},
        read=(_READ, _READ),
        write=(_UPDATE, _UPDATE),
        segments={
            SegmentPart.WHOLE: {Act.READ: _READ, Act.WRITE: _UPDATE, Act.TRUNCATE: _UPDATE, Act.SEAL: _UPDATE},
            SegmentPart.TRANSACTION: {Act.READ: _UPDATE, Act.WRITE: _UPDATE},
            SegmentPart.TRANSIENT: {Act.READ: _UPDATE, Act.WRITE: _UPDATE, Act.MERGE: _UPDATE},
        },
    ),
    NameKind.MARKS: Rights(
        resource=lambda scope, name: stream_resource(scope, name.removeprefix(MARK_PREFIX)),
        requests={Act.INSPECT: _READ, Act.END: _UPDATE},  # Java deletes a scope by deleting every stream that it lists
        read=(_READ, _READ),
        write=(_READ, _READ),
        segments={SegmentPart.WHOLE: {Act.READ: _READ}},
    ),
    NameKind.GROUP: Rights(
        resource=_of_group,
        requests={Act.INSPECT: _READ, Act.END: _UPDATE},
        read=(_READ, _READ),
        write=(_READ, _UPDATE),
        segments={SegmentPart.WHOLE: {Act.READ: _READ, Act.WRITE: _UPDATE, Act.TRUNCATE: _UPDATE}},
    ),
    NameKind.GROUP_TABLE: Rights(
        resource=_of_group,
        requests={Act.INSPECT: _READ},
        read=(_READ, _READ),
        write=(_READ, _UPDATE),
        segments={SegmentPart.WHOLE: {Act.READ: _READ, Act.WRITE: _UPDATE, Act.CREATE: _UPDATE}},
    ),
    NameKind.TABLE: Rights(
        resource=stream_resource,
        requests={Act.INSPECT: _READ},
        read=(_READ, _READ),
        write=(_UPDATE, _UPDATE),
        segments={SegmentPart.WHOLE: {Act.READ: _READ, Act.WRITE: _UPDATE, Act.CREATE: _UPDATE, Act.DELETE: _UPDATE}},
    ),
    NameKind.SHARED_TABLE: Rights(
        resource=stream_resource,
        requests={Act.INSPECT: _READ},
        read=(_READ, _READ),
        write=(_UPDATE, _UPDATE),
        segments={SegmentPart.WHOLE: {Act.READ: _READ, Act.WRITE: _UPDATE, Act.CREATE: _UPDATE}},
    ),
    NameKind.AUDIT: Rights(
        resource=lambda scope, name: AUDIT,
        requests={Act.INSPECT: _READ},
        read=(_READ, _READ),
        write=None,
        segments={SegmentPart.WHOLE: {Act.READ: _READ}},
    ),
    NameKind.CLUSTER: Rights(
        resource=lambda scope, name: CLUSTER,
        requests={Act.INSPECT: _UPDATE},
        read=None,
        write=(_UPDATE, _UPDATE),
        segments={SegmentPart.WHOLE: {Act.WRITE: _UPDATE}},
    ),
    NameKind.SYSTEM: Rights(
        resource=lambda scope, name: scope_resource(scope), requests={Act.INSPECT: _READ}, read=None, write=None
    ),
    NameKind.UNKNOWN: Rights(resource=stream_resource, requests={}, read=None, write=None),
}

_USER_NAME = r"[A-Za-z0-9.\-]+"  # chosen by users for streams and reader groups
_INTERNAL = (
    (NameKind.MARKS, re.compile(f"{MARK_PREFIX}{_USER_NAME}")),
    (NameKind.GROUP, re.compile(f"{READER_GROUP_PREFIX}{_USER_NAME}")),
    (NameKind.GROUP_TABLE, re.compile(f"{READER_GROUP_PREFIX}{_USER_NAME}{TABLE_SUFFIX}")),
    (NameKind.SHARED_TABLE, re.compile(f"(?:{'|'.join(CLIENT_TABLES)}){TABLE_SUFFIX}")),
)


def kind_of(scope: str, name: str) -> NameKind:
    """Return the kind of a stream's or a table's name."""
    if scope == INTERNAL_SCOPE:
        return NameKind.AUDIT if name == AUDIT_STREAM else NameKind.SYSTEM
    if scope == CLUSTER_SCOPE and name == SCRUB:
        return NameKind.CLUSTER
    if scope.startswith("_"):
        return NameKind.UNKNOWN
    if name.startswith("_"):
        return next((kind for kind, form in _INTERNAL if form.fullmatch(name)), NameKind.UNKNOWN)
    return NameKind.TABLE if name.endswith(TABLE_SUFFIX) else NameKind.STREAM


def need(scope: str, name: str, act: Act) -> Need:
    """Return the requirement of a request at the controller; for READ and WRITE, of a token request."""
    rights = RIGHTS[kind_of(scope, name)]
    if act in (Act.READ, Act.WRITE):
        required, granted = (rights.read if act is Act.READ else rights.write) or (None, Permission.NONE)
        return Need(rights.resource(scope, name), required, granted)
    resource = scope_resource(scope) if act is Act.CREATE else rights.resource(scope, name)
    return Need(resource, rights.requests.get(act))


def segment_permission(segment: str, act: Act) -> Permission | None:
    """Return the permission that a token needs on the segment; None if only the server's token is accepted.

    >>> segment_permission("home/meters/0.#epoch.0", Act.READ)
    <Permission.READ: 1>
    >>> segment_permission("home/_MARKmeters/0.#epoch.0", Act.DELETE)
    """
    parsed = segment_of(segment)
    if parsed is None:
        return None
    if act in (Act.CREATE, Act.DELETE) and segment != segment_name(parsed.scope, parsed.name, 0):
        return None  # clients create tables of one segment, only the controller creates larger ones
    if parsed.is_transient:
        part = SegmentPart.TRANSIENT
    else:
        part = SegmentPart.TRANSACTION if parsed.in_transaction else SegmentPart.WHOLE
    return RIGHTS[kind_of(parsed.scope, parsed.name)].segments.get(part, {}).get(act)
