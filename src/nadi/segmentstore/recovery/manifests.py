"""The seam between a container's snapshots and the manifest that makes one of them count.

In a data folder's tier 2 a manifest is an object of its own (`ObjectManifests`), and only one server has the folder.
Where several servers share tier 2 it is part of a record that changes by compare-and-set, and only the container's
owner can change it. What may be deleted follows from that, so it is decided here: who may have lost the container
without knowing it must not delete what it finds in a listing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from nadi.errors import NadiError
from nadi.segmentstore.recovery import snapshots
from nadi.segmentstore.recovery.snapshots import Manifest
from nadi.segmentstore.tier2.chunks import ChunkStore


class Manifests(Protocol):
    """The manifest of one container. After a FencedError nothing here is called any more."""

    async def newest(self) -> tuple[Manifest | None, list[str]]:
        """Return the manifest that counts, and what is wrong with later ones.

        Raises:
            FencedError: the container is another server's.
            UnavailableError: it can't be read.
        """

    async def put(self, manifest: Manifest, former: Manifest | None, oldest_frame: int) -> Manifest:
        """Make the snapshot count, in place of the former; return the manifest with the number it got.

        manifest: its state reflects the log up to its `sequence`; its number is 0. former: what counted, as far as the
        caller knows. oldest_frame: the log has the only copy of bytes from this frame on, `sequence` + 1 if of none
        before that.
        If it fails, what the manifest names and the former doesn't is in nobody's hands: it is deleted here, or left,
        if it isn't certain that the manifest doesn't count.

        Raises:
            FencedError: the container is another server's; nothing was changed, and nothing may be deleted.
            NadiError: it doesn't count, or nobody knows.
        """

    async def renew(self, manifest: Manifest, is_newest: Callable[[], bool]) -> list[str]:
        """Make sure that the manifest is stored, storing it again if it isn't; return what was wrong.

        is_newest: whether it still is the newest; another may be put meanwhile.

        Raises:
            FencedError: the container is another server's.
            SnapshotError: it isn't stored any more, and can't be.
            UnavailableError: it can't be read.
        """

    async def delete_former(self, former: Manifest | None, manifest: Manifest) -> None:
        """Delete what nobody needs any more, now that this manifest counts in place of the former.

        Raises:
            NadiError: some of it stays.
        """


class ObjectManifests:
    """Manifests as objects, each in two places. Their one owner deletes whatever else it finds beside them."""

    def __init__(self, container: int, chunks: ChunkStore) -> None:
        self._container, self._chunks = container, chunks

    async def newest(self) -> tuple[Manifest | None, list[str]]:
        return await snapshots.newest(self._chunks, self._container)

    async def put(self, manifest: Manifest, former: Manifest | None, oldest_frame: int) -> Manifest:
        await self._chunks.check_ours()  # a copy's manifests have the same names
        known = former.parts if former is not None else ()
        names = [part.name for part in manifest.parts if part not in known]  # the next try makes its own
        try:
            if former is not None:
                number = former.number + 1
            else:  # above all existing ones, damaged ones too: an object is written once
                number = await snapshots.last_number(self._chunks, self._container) + 1
            manifest = msgspec.structs.replace(manifest, number=number)
            names = [*snapshots.manifest_names(self._container, number), *names]
            await snapshots.put_manifest(self._chunks, manifest)
        except NadiError:  # it may be there, though not durably, and what it names is not to stay
            await self._chunks.check_ours()
            await snapshots.delete_all(self._chunks, names)
            raise
        return manifest

    async def renew(self, manifest: Manifest, is_newest: Callable[[], bool]) -> list[str]:
        wrong = await snapshots.renew_manifest(self._chunks, manifest)
        if not is_newest():  # replaced meanwhile, and deleted
            await self._chunks.check_ours()
            await snapshots.delete_all(self._chunks, snapshots.manifest_names(self._container, manifest.number))
            return []
        return wrong

    async def delete_former(self, former: Manifest | None, manifest: Manifest) -> None:
        await self._chunks.check_ours()
        if former is not None and former.base == manifest.base:
            for name in snapshots.manifest_names(self._container, former.number):
                await self._chunks.delete(name)
            return
        needed = {part.name for part in manifest.parts}
        needed.update(snapshots.manifest_names(self._container, manifest.number))
        for name in await self._chunks.listed(snapshots.folder_of(self._container)):
            if name not in needed:
                await self._chunks.delete(name)
