"""The answer to a scrape. Nothing is gathered unless somebody asks, and whoever asks within a second, or while figures
are being gathered, gets the same ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nadi.controller.engine.workflows import Workflows
from nadi.controller.metrics.figures import Figures
from nadi.controller.metrics.gather import HotKeys, gather
from nadi.controller.periodic.scaling_rounds import Counts
from nadi.limits import METRICS_CACHED_S

if TYPE_CHECKING:
    from prometheus_client.core import Metric

CONTENT_TYPES = ("text/plain", "application/openmetrics-text")


class Metrics:
    """counts and hot_keys: of the scalings; unfinished: how much is in progress."""

    def __init__(
        self, flow: Workflows, counts: Counts, hot_keys: HotKeys, unfinished: Callable[[], dict[str, int]]
    ) -> None:
        self._flow, self._counts, self._hot_keys, self._unfinished = flow, counts, hot_keys, unfinished
        self._gathering: asyncio.Task[Figures] | None = None
        self._gathered_s = 0.0

    async def scrape(self, accept: str) -> tuple[bytes, str]:
        """All metrics as text, in the form that the Accept header asks for, and its content type."""
        from prometheus_client.exposition import choose_encoder

        from nadi.controller.metrics.families import families

        figures = await self._figures()
        encode, content_type = choose_encoder(accept)
        found = list(families(figures, self._counts, self._unfinished()))
        return encode(_Collected(found)), content_type

    async def _figures(self) -> Figures:
        clock, task = self._flow.clock, self._gathering
        is_old = task is not None and task.done() and clock.monotonic() - self._gathered_s > METRICS_CACHED_S
        if task is None or is_old or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._gathering = self._flow.tasks.spawn(gather(self._flow, self._hot_keys))
            task.add_done_callback(self._done)
        return await asyncio.shield(task)  # it goes on for others, though one of them leaves

    def _done(self, _: object) -> None:
        self._gathered_s = self._flow.clock.monotonic()


@dataclass(frozen=True, slots=True)
class _Collected:
    """What the encoder takes for a registry."""

    found: list[Metric]

    def collect(self) -> Iterator[Metric]:
        return iter(self.found)
