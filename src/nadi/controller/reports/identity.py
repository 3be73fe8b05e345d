"""The identity of a server or a cluster: chance digits, made when it is first asked for, and kept with all records.

By it clients know whose a thing is that they keep elsewhere, where several servers may share a place.
"""

from __future__ import annotations

from nadi.controller.engine.workflows import Workflows
from nadi.controller.state.records import Number
from nadi.controller.state.store import ABSENT
from nadi.errors import ConditionFailedError
from nadi.model.reports import IdentityReport

_KEY = "identity"  # in `numbers`
_BITS = 52  # that a chance has


async def identity(flow: Workflows) -> IdentityReport:
    """The same one each time."""
    numbers = flow.metadata.numbers
    held = await numbers.get(_KEY)
    if held is None:
        try:
            held = await numbers.put(_KEY, Number(int(flow.clock.chance() * (1 << _BITS))), ABSENT)
        except ConditionFailedError:  # another call has just made it
            held = await numbers.get(_KEY, fresh=True)
            assert held is not None, "nobody removes it"
    return IdentityReport(f"{held.value.value:013x}")
