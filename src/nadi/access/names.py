"""Who may do what to a name: one table, for every entrance.

Most names were given to streams and tables by users. The others belong to parts of something, or to the server, and
allow less than a stream does: others may do only what clients need, and the rest is for the server alone, whose token
permits everything. For each kind of name, `RIGHTS` says which permission a caller needs on which resource to have a
request carried out or a token issued, what that token permits, and what it allows on a segment. Anything not in the
table is for the server alone.

The full name decides its kind: one that merely starts like a kind, or combines several, is unknown, as is any other
with a leading underscore; unknown names are for the server alone too.

    _MARK<stream>        watermarks. Readers of the stream read them; Java's ask to write and never do _RG<group>
    the state of a Java reader group: its readers write and truncate it _RG<group>_kvtable   the state of nadi's: its
    readers write it, and whoever creates the group creates it <name>_kvtable       a table: of a user, of Python's
    reader groups, a partition of a key-value table _bookmarks_kvtable   a table that nadi's clients share in a scope,
    as are the others of CLIENT_TABLES; deleted with the scope _system/...          the controller's tables
    _cluster/scrub       what the server does as a whole, the scrub: for callers that may create scopes

The segment of a transaction, or of a large event in flight, has its stream's name with a suffix. Callers that may only
read the stream must not read what may never become part of it, and only the server merges transactions.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from nadi.access.permissions import CLUSTER, Permission, reader_group_resource, scope_resource, stream_resource
from nadi.naming import (
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
    """What a name belongs to."""

    STREAM = "a stream"
    MARKS = "watermarks"
    GROUP = "a Java reader group's state"
    GROUP_TABLE = "a reader group's state"
    TABLE = "a table"
    SHARED_TABLE = "a scope's shared table"
    SYSTEM = "the server's own"
    CLUSTER = "what a server does as a whole"
    UNKNOWN = "an internal name of nothing"


class SegmentPart(enum.Enum):
    """Which segments of a name."""

    WHOLE = "its own"
    TRANSACTION = "of its transactions"
    TRANSIENT = "of large events on their way"


class Act(enum.Enum):
    """What is done to a name, at the controller or to its segments."""

    LOOK = "be told about it, find it in a list"
    END = "seal it, delete it"
    CHANGE = "scale, truncate, configure it, begin and end transactions"
    CREATE = "make it"
    READ = "read it"
    WRITE = "add to it, change its attributes and entries"
    FREE_ROOM = "change its entries on a full disk too"  # the server's alone: nobody else may use up the reserve
    TRUNCATE = "drop its start"
    SEAL = "seal a segment"
    DELETE = "delete a segment"
    MERGE = "make it a part of another segment"


@dataclass(frozen=True, slots=True)
class Need:
    """A permission on a resource; None: only the server has it. `token`: what the token issued with it permits."""

    resource: str
    permission: Permission | None
    token: Permission = Permission.NONE


@dataclass(frozen=True, slots=True)
class Rights:
    """resource: what scope and name stand for. asked: the permission that a request at the controller needs (on the
    scope, for creation). read, write: the permission needed to get a token for that, and what the token then permits.
    segments: the permission that a token must hold for an act on segments."""

    resource: Callable[[str, str], str]
    asked: Mapping[Act, Permission]
    read: tuple[Permission, Permission] | None
    write: tuple[Permission, Permission] | None
    segments: Mapping[SegmentPart, Mapping[Act, Permission]] = field(default_factory=dict)


_READ, _UPDATE = Permission.READ, Permission.READ_UPDATE


def _of_group(scope: str, name: str) -> str:
    return reader_group_resource(scope, name.removeprefix(READER_GROUP_PREFIX).removesuffix(TABLE_SUFFIX))


RIGHTS: dict[NameKind, Rights] = {
    NameKind.STREAM: Rights(
        resource=stream_resource,
        asked={Act.LOOK: _READ, Act.END: _UPDATE, Act.CHANGE: _UPDATE, Act.CREATE: _UPDATE},
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
        asked={Act.LOOK: _READ, Act.END: _UPDATE},  # Java's deletion of a scope ends each stream that it lists
        read=(_READ, _READ),
        write=(_READ, _READ),
        segments={SegmentPart.WHOLE: {Act.READ: _READ}},
    ),
    NameKind.GROUP: Rights(
        resource=_of_group,
        asked={Act.LOOK: _READ, Act.END: _UPDATE},
        read=(_READ, _READ),
        write=(_READ, _UPDATE),
        segments={SegmentPart.WHOLE: {Act.READ: _READ, Act.WRITE: _UPDATE, Act.TRUNCATE: _UPDATE}},
    ),
    NameKind.GROUP_TABLE: Rights(
        resource=_of_group,
        asked={Act.LOOK: _READ},
        read=(_READ, _READ),
        write=(_READ, _UPDATE),
        segments={SegmentPart.WHOLE: {Act.READ: _READ, Act.WRITE: _UPDATE, Act.CREATE: _UPDATE}},
    ),
    NameKind.TABLE: Rights(
        resource=stream_resource,
        asked={Act.LOOK: _READ},
        read=(_READ, _READ),
        write=(_UPDATE, _UPDATE),
        segments={SegmentPart.WHOLE: {Act.READ: _READ, Act.WRITE: _UPDATE, Act.CREATE: _UPDATE, Act.DELETE: _UPDATE}},
    ),
    NameKind.SHARED_TABLE: Rights(
        resource=stream_resource,
        asked={Act.LOOK: _READ},
        read=(_READ, _READ),
        write=(_UPDATE, _UPDATE),
        segments={SegmentPart.WHOLE: {Act.READ: _READ, Act.WRITE: _UPDATE, Act.CREATE: _UPDATE}},
    ),
    NameKind.CLUSTER: Rights(
        resource=lambda scope, name: CLUSTER,
        asked={Act.LOOK: _UPDATE},
        read=None,
        write=(_UPDATE, _UPDATE),
        segments={SegmentPart.WHOLE: {Act.WRITE: _UPDATE}},
    ),
    NameKind.SYSTEM: Rights(
        resource=lambda scope, name: scope_resource(scope), asked={Act.LOOK: _READ}, read=None, write=None
    ),
    NameKind.UNKNOWN: Rights(resource=stream_resource, asked={}, read=None, write=None),
}

_GIVEN = r"[A-Za-z0-9.\-]+"  # by users, to streams and reader groups
_INTERNAL = (
    (NameKind.MARKS, re.compile(f"{MARK_PREFIX}{_GIVEN}")),
    (NameKind.GROUP, re.compile(f"{READER_GROUP_PREFIX}{_GIVEN}")),
    (NameKind.GROUP_TABLE, re.compile(f"{READER_GROUP_PREFIX}{_GIVEN}{TABLE_SUFFIX}")),
    (NameKind.SHARED_TABLE, re.compile(f"(?:{'|'.join(CLIENT_TABLES)}){TABLE_SUFFIX}")),
)


def kind_of(scope: str, name: str) -> NameKind:
    """What a stream's or a table's name belongs to."""
    if scope == INTERNAL_SCOPE:
        return NameKind.SYSTEM
    if scope == CLUSTER_SCOPE and name == SCRUB:
        return NameKind.CLUSTER
    if scope.startswith("_"):
        return NameKind.UNKNOWN
    if name.startswith("_"):
        return next((kind for kind, form in _INTERNAL if form.fullmatch(name)), NameKind.UNKNOWN)
    return NameKind.TABLE if name.endswith(TABLE_SUFFIX) else NameKind.STREAM


def need(scope: str, name: str, act: Act) -> Need:
    """What a request at the controller needs; for READ and WRITE, with the token for that."""
    rights = RIGHTS[kind_of(scope, name)]
    if act in (Act.READ, Act.WRITE):
        needed, given = (rights.read if act is Act.READ else rights.write) or (None, Permission.NONE)
        return Need(rights.resource(scope, name), needed, given)
    resource = scope_resource(scope) if act is Act.CREATE else rights.resource(scope, name)
    return Need(resource, rights.asked.get(act))


def segment_permission(segment: str, act: Act) -> Permission | None:
    """What a token for the segment's name must hold; None: only the server's own will do.

    >>> segment_permission("home/meters/0.#epoch.0", Act.READ)
    <Permission.READ: 1>
    >>> segment_permission("home/_MARKmeters/0.#epoch.0", Act.DELETE)
    """
    found = segment_of(segment)
    if found is None:
        return None
    if act in (Act.CREATE, Act.DELETE) and segment != segment_name(found.scope, found.name, 0):
        return None  # clients create tables of one segment; those of several are the controller's
    if found.is_transient:
        part = SegmentPart.TRANSIENT
    else:
        part = SegmentPart.TRANSACTION if found.in_transaction else SegmentPart.WHOLE
    return RIGHTS[kind_of(found.scope, found.name)].segments.get(part, {}).get(act)
