"""Whether something new may be created: its configuration, and its scope, checked once its work is recorded.

Deleting a scope marks it DELETING and then looks for unfinished work and for contents. So either the deletion sees the
record and waits for it, or the writer of the record sees the mark and undoes whatever is half made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nadi.controller.engine.work import Refused
from nadi.controller.engine.workflows import Workflows
from nadi.controller.state.metadata import StreamName
from nadi.controller.state.records import EpochSegment, ScopeState
from nadi.controller.state.segments import both
from nadi.errors import InvalidArgumentError, ScopeNotFoundError
from nadi.naming import segment_number


def check_all(what: str, *wanted: tuple[bool, str]) -> None:
    """InvalidArgumentError for the first of a configuration's needs that isn't met."""
    for is_met, need in wanted:
        if not is_met:
            raise InvalidArgumentError(f"the {what}'s configuration is wrong: it needs {need}")


async def check(flow: Workflows, scope: str, segments: Mapping[StreamName, Sequence[EpochSegment]]) -> None:
    """Raise Refused if the scope is being deleted or gone, or if segments of these names may have existed before."""
    found, firsts = await both(flow.metadata.scopes.get(scope, fresh=True), flow.metadata.first_numbers(list(segments)))
    if found is None or found.value.state is ScopeState.DELETING:
        raise Refused(ScopeNotFoundError(scope))
    for first, planned in zip(firsts, segments.values(), strict=True):
        if any(segment_number(segment.id) < first for segment in planned):
            raise Refused
