"""Fetching extents that are chunks.

A store of chunks that is elsewhere may be away for long. Whoever reads is told so each time; the log of the server is
told once.
"""

from __future__ import annotations

import logging

from nadi.errors import ChunksUnavailableError, NotFoundError, UnavailableError
from nadi.segmentstore.reading.fetched import Fetched
from nadi.segmentstore.state.records import Extent
from nadi.segmentstore.tier2.checksums import BLOCK_BYTES
from nadi.segmentstore.tier2.chunks import ChunkStore, DiskReadError

log = logging.getLogger(__name__)


class Chunked:
    """For one segment store."""

    def __init__(self, chunks: ChunkStore) -> None:
        self._chunks = chunks
        self._is_away = False  # as far as the last fetch knows

    async def fetch(self, extent: Extent, begin: int, size: int) -> Fetched:
        """Part of a chunk, from a whole block on, checked.

        Raises:
            ChunksUnavailableError: tier 2 doesn't give it now.
        """
        name, first = extent.chunk, begin // BLOCK_BYTES
        try:
            data, numbers = await self._chunks.read_checked(name, begin, size, extent.checksums)
        except NotFoundError:
            missing = range(first, -(-(begin + size) // BLOCK_BYTES))
            return Fetched(b"", begin, size, dict.fromkeys(missing, f"chunk {name} is missing"), BLOCK_BYTES)
        except DiskReadError as error:
            if size <= BLOCK_BYTES:
                return Fetched(b"", begin, size, {first: str(error)}, BLOCK_BYTES)
            # one bad place fails the whole read: block by block, the others are recovered
            pieces = [
                await self.fetch(extent, at, min(BLOCK_BYTES, begin + size - at))
                for at in range(begin, begin + size, BLOCK_BYTES)
            ]
            damaged = {number: reason for piece in pieces for number, reason in piece.damaged.items()}
            whole = b"".join(bytes(piece.data).ljust(piece.size, b"\0") for piece in pieces)
            return Fetched(whole, begin, size, damaged, BLOCK_BYTES)
        except UnavailableError as error:
            if not self._is_away:
                log.warning("tier 2 gives readers nothing, and they try again: %s", error)
            self._is_away = True
            raise ChunksUnavailableError(
                "what isn't in the log any more can't be read now, for tier 2 doesn't answer: try again"
            ) from None
        self._is_away = False
        reason = f"chunk {name} is too short" if len(data) < size else f"chunk {name} has a wrong checksum"
        return Fetched(data, begin, size, dict.fromkeys(numbers, reason), BLOCK_BYTES)
