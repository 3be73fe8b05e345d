"""The answer to a scrape: what the controller knows of streams and groups, and what each server tells of itself.

Nothing is gathered unless somebody asks, and whoever asks within a second, or while figures are being gathered, gets
the same ones. Figures are taken in the loop; text is made of them in a thread.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nadi.controller.engine.workflows import Workflows
from nadi.controller.metrics.gather import Figures, HotKeys, gather
from nadi.controller.periodic.retention_rounds import Released
from nadi.controller.periodic.scaling_rounds import Counts
from nadi.errors import NadiError
from nadi.limits import METRICS_CACHED_S
from nadi.observe.metrics import Sample
from nadi.runtime import Runtime

if TYPE_CHECKING:
    from prometheus_client.core import Metric

CONTENT_TYPES = ("text/plain", "application/openmetrics-text")
_VERSIONS = ("0.0.1", "0.0.4", "1.0.0")
_version = re.compile("version=([^;]*)")


class Metrics:
    """counts and hot_keys: of the scalings; released: by retention; unfinished: how much is in progress."""

    def __init__(
        self,
        flow: Workflows,
        counts: Counts,
        released: Released,
        hot_keys: HotKeys,
        unfinished: Callable[[], dict[str, int]],
    ) -> None:
        self._flow, self._counts, self._released = flow, counts, released
        self._hot_keys, self._unfinished = hot_keys, unfinished
        self._gathering: asyncio.Task[Figures | NadiError] | None = None
        self._gathered_s = 0.0
        self._written_of: Figures | None = None
        self._written: dict[str, asyncio.Task[bytes]] = {}  # by content type

    async def scrape(self, accept: str) -> tuple[bytes, str]:
        """All metrics as text, in the form that the Accept header asks for, and its content type."""
        from prometheus_client.exposition import choose_encoder

        figures = await self._figures()
        encode, content_type = choose_encoder(_spoken(accept))
        if self._written_of is not figures:
            self._written_of, self._written = figures, {}
        text = self._written.get(content_type)
        if text is None:
            text = self._written[content_type] = self._flow.tasks.spawn(self._write(figures, encode))
        return await asyncio.shield(text), content_type

    async def _write(self, figures: Figures, encode: Callable[[Any], bytes]) -> bytes:
        """In a thread: it takes some 20 us a line."""
        counts, released, unfinished = replace(self._counts), replace(self._released), self._unfinished()
        now_s = self._flow.clock.monotonic()

        def write() -> bytes:
            from nadi.controller.metrics.families import families

            return encode(_Collected(list(families(figures, counts, released, unfinished, now_s))))

        return await self._flow.clock.in_thread(write)

    async def _figures(self) -> Figures:
        clock, task = self._flow.clock, self._gathering
        is_old = task is not None and task.done() and clock.monotonic() - self._gathered_s > METRICS_CACHED_S
        if task is None or is_old or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._gathering = self._flow.tasks.spawn(self._gather())
            task.add_done_callback(self._done)
        found = await asyncio.shield(task)  # it goes on for others, though one of them leaves
        if isinstance(found, NadiError):
            raise found
        return found

    async def _gather(self) -> Figures | NadiError:
        try:
            return await gather(self._flow, self._hot_keys)
        except NadiError as error:  # for all who wait
            return error

    def _done(self, _: object) -> None:
        self._gathered_s = self._flow.clock.monotonic()


class OwnMetrics:
    """What a server tells of itself and its process, whichever server has the controller. samples: as they are now."""

    def __init__(self, samples: Callable[[], Iterable[Sample]], runtime: Runtime) -> None:
        self._samples, self._runtime = samples, runtime
        self._written: dict[str, tuple[float, asyncio.Future[bytes]]] = {}  # by content type, and since when

    async def after(self, text: bytes, accept: str) -> bytes:
        """The text of a scrape with these metrics after it, in the same form."""
        from prometheus_client.exposition import choose_encoder

        encode, content_type = choose_encoder(_spoken(accept))
        began_s, found = self._written.get(content_type, (0.0, None))
        now_s = self._runtime.monotonic()
        if found is None or (found.done() and now_s - began_s > METRICS_CACHED_S):
            found = self._runtime.in_thread(_own_text, list(self._samples()), encode)
            self._written[content_type] = now_s, found
        return text.removesuffix(b"# EOF\n") + await asyncio.shield(found)


def _own_text(samples: list[Sample], encode: Callable[[Any], bytes]) -> bytes:
    from prometheus_client import ProcessCollector

    from nadi.observe.metrics import families

    return encode(_Collected([*families(samples), *ProcessCollector(registry=None).collect()]))


def nothing(accept: str) -> tuple[bytes, str]:
    """What `Metrics.scrape` would return if there were no metrics."""
    return _of([], accept)


def incomplete(accept: str) -> tuple[bytes, str]:
    """What stands for `Metrics.scrape` where that isn't possible now."""
    from nadi.controller.metrics.families import unavailable

    return _of(list(unavailable()), accept)


def _of(found: list[Metric], accept: str) -> tuple[bytes, str]:
    from prometheus_client.exposition import choose_encoder

    encode, content_type = choose_encoder(_spoken(accept))
    return encode(_Collected(found)), content_type


def _spoken(accept: str) -> str:
    """An Accept header without offers of versions that aren't spoken here, or are none.

    >>> _spoken("application/openmetrics-text;version=2.0.0,application/openmetrics-text;version=1.0.0;q=0.5,*/*")
    'application/openmetrics-text;version=1.0.0;q=0.5,*/*'
    """
    offers = accept.split(",")
    return ",".join(offer for offer in offers if all(one.strip() in _VERSIONS for one in _version.findall(offer)))


@dataclass(frozen=True, slots=True)
class _Collected:
    """What the encoder takes for a registry."""

    found: list[Metric]

    def collect(self) -> Iterator[Metric]:
        return iter(self.found)
