"""Whether something new may be created: its configuration, and its scope, checked once its work is recorded.

Deleting a scope marks it DELETING and then looks for unfinished work and for contents. So either the deletion sees the
record and waits for it, or the writer of the record sees the mark and undoes whatever is half made.
"""

from __future__ import annotations

from nadi.controller.engine.workflows import Refused, Workflows
from nadi.controller.state.records import ScopeState
from nadi.errors import InvalidArgumentError, ScopeNotFoundError


def check_all(what: str, *wanted: tuple[bool, str]) -> None:
    """InvalidArgumentError for the first of a configuration's needs that isn't met."""
    for is_met, need in wanted:
        if not is_met:
            raise InvalidArgumentError(f"the {what}'s configuration is wrong: it needs {need}")


async def check(flow: Workflows, scope: str) -> None:
    """Raise Refused if the scope is being deleted or gone."""
    found = await flow.metadata.scopes.get(scope, fresh=True)
    if found is None or found.value.state is ScopeState.DELETING:
        raise Refused(ScopeNotFoundError(scope))
