"""What a repair of a segment store leaves to the controller: rebuilding streams whose records it had to give up.

The repair notes that in the data folder (`unfinished`) and looks at the stopped folder to report what will be done.
The next server does it when it starts, before it accepts any request, and logs it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path

from nadi.controller.anew.found import Found
from nadi.controller.anew.plan import Plan, carry_out, look
from nadi.controller.engine.tasks import Tasks
from nadi.controller.engine.workflows import Workflows
from nadi.controller.state.metadata import Metadata
from nadi.controller.state.segments import Exchange, Segments
from nadi.controller.state.store import Store
from nadi.errors import NadiError
from nadi.runtime import REAL
from nadi.segmentstore.container.container import Container
from nadi.segmentstore.looking import looked_at
from nadi.segmentstore.repair import unfinished
from nadi.segmentstore.state.records import Kind

log = logging.getLogger(__name__)


async def look_at(folder: Path) -> Plan:
    """What a server started with this stopped folder will rebuild.

    Raises:
        DamagedStateError: none can be started.
        UnavailableError, OSError: the folder can't be read.
    """
    async with looked_at(folder) as store:
        return await look(_flow(store.exchange), found_in(store.containers))


async def finish(folder: Path, containers: Iterable[Container], exchange: Exchange) -> None:
    """Rebuild whatever a repair has left; if not all of it can be done now, the next start continues."""
    if not unfinished.is_noted(folder):
        return
    flow = _flow(exchange)
    try:
        plan = await look(flow, found_in(containers))
        for line in plan.lines():
            log.warning("after a repair: %s", line)
        await carry_out(flow, plan)
        await asyncio.to_thread(unfinished.clear, folder)
    except (NadiError, OSError) as error:
        log.error("what a repair left to rebuild waits for the next start: %s", error)
    except Exception:  # all else is served, and nothing is lost by it
        log.exception("what a repair left to rebuild waits for the next start")


def _flow(exchange: Exchange) -> Workflows:
    segments = Segments(exchange, REAL)
    return Workflows(Metadata(Store(segments)), segments, REAL, Tasks())


def found_in(containers: Iterable[Container]) -> Iterator[Found]:
    """All segments of containers that nobody else uses."""
    for container in containers:
        state = container.state
        ids = dict.fromkeys(state.metadata.segments()) | {record.id: None for record in state.record_cache.all()}
        for segment in ids:
            record = state.by_id(segment)
            if record is not None:
                yield Found(
                    record.name,
                    record.kind == Kind.TABLE,
                    record.start_offset,
                    record.length,
                    record.sealed,
                    record.created_ms,
                    record.key_length,
                )
            state.make_room()
