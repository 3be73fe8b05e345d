"""`nadi quota`: limits of scopes and users."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nadi.cli.session import Resource, Row, option, taking
from nadi.errors import InvalidArgumentError

if TYPE_CHECKING:
    from nadi.client import Quota, QuotaLimits, StreamManager

_OWNER = Annotated[str, typer.Argument(help="scope/SCOPE or user/USER.")]
_NONE = "none"
_SIZES = ("bytes_in", "bytes_out", "stored_bytes")
_HELP = {
    "bytes_in": "Bytes written per second, such as 10MB",
    "requests_in": "Appends per second",
    "bytes_out": "Bytes read per second",
    "requests_out": "Reads per second",
    "streams": "Streams of a scope",
    "segments": "Segments of a scope's streams",
    "stored_bytes": "Stored bytes of a scope, such as 1TB",
    "connections": "Connections of a user",
}
_OPTIONS = {name: option(str, f"{about}; `{_NONE}` for no limit.", metavar="N") for name, about in _HELP.items()}


def _row(quota: Quota) -> Row:
    limits = {name: value for name in _HELP if (value := getattr(quota, name)) is not None}
    return {"quota": quota.owner, **limits, **{f"{name}_used": used for name, used in quota.used.items()}}


def _for_people(row: Row) -> Row:
    texts = [f"{name} {row.get(f'{name}_used', 0):,.0f} of {row[name]:,}" for name in _HELP if name in row]
    return {"quota": row["quota"], "use": texts}


quota_app = Resource(
    noun="quota",
    names={"quota": _OWNER},
    columns=["quota", "use"],
    rows=lambda manager: (map(_row, manager.list_quotas()), ()),
    for_people=_for_people,
    empty="No quotas.",
    show=lambda manager, quota: _row(manager.quota(quota)),
    delete=lambda manager, quota: manager.delete_quota(quota),
).app()


def _limits(given: Mapping[str, Any], known: Mapping[str, int | None]) -> QuotaLimits:
    from nadi.client import QuotaLimits

    changed = {name: _number(name, text) for name, text in given.items() if text is not None}
    return QuotaLimits(**{**known, **changed})


def _number(name: str, text: str) -> int | None:
    from nadi.cli.amounts import size_bytes

    if text == _NONE:
        return None
    if text.isascii() and text.isdecimal() and len(text) < 19:
        return int(text)
    if name in _SIZES:
        return size_bytes(text)
    raise InvalidArgumentError(f"--{name.replace('_', '-')} can't be {text!r}: use a whole number, or {_NONE}")


@quota_app.command("create")
@taking(_OPTIONS)
def create_quota(manager: StreamManager, quota: _OWNER, **given: Any) -> None:
    """Limit a scope or a user."""
    from nadi.cli.printing import say

    is_new = manager.create_quota(quota, _limits(given, {}))
    say(f"created quota {quota}" if is_new else f"quota {quota} already exists")


@quota_app.command("update")
@taking(_OPTIONS)
def update_quota(manager: StreamManager, quota: _OWNER, **given: Any) -> None:
    """Change limits; the others stay. Servers apply the change within seconds."""
    from nadi.cli.printing import say

    known = manager.quota(quota)
    manager.update_quota(quota, _limits(given, {name: getattr(known, name) for name in _HELP}))
    say(f"updated quota {quota}")
