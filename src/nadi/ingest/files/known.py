"""Known: the places of files that nothing reads now, found again by what a file is, or by what it is a copy of."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping

from nadi.ingest.files.disk import FileId, OpenFile, Seen
from nadi.ingest.files.places import Place
from nadi.limits import INGEST_PLACES_KEPT_S, INGEST_SEEN_S


class Known:
    """Filled and emptied by the follower, which asks it of each file that it comes upon."""

    def __init__(self) -> None:
        self._places: dict[bytes, Place] = {}
        self._by_file: defaultdict[FileId, dict[bytes, Place]] = defaultdict(dict)
        self._by_folder: defaultdict[str, dict[bytes, Place]] = defaultdict(dict)

    def add(self, place: Place) -> None:
        self._places[place.id] = self._by_file[place.file][place.id] = self._by_folder[place.folder][place.id] = place

    def remove(self, place: Place) -> None:
        if self._places.pop(place.id, None) is not None:
            del self._by_file[place.file][place.id]
            del self._by_folder[place.folder][place.id]

    @property
    def folders(self) -> list[str]:
        """Where their files are, whatever they are called by now."""
        return [folder for folder, places in self._by_folder.items() if places]

    def at(self, file: OpenFile) -> Place | None:
        """The place of this very file."""
        return next((place for place in self._of(file.id) if place.is_in(file)), None)

    def copied_to(self, file: OpenFile, there: Mapping[FileId, Seen]) -> Place | None:
        """The place of a file that is gone, or was emptied, and of which this is the copy. there: all files."""
        for place in list(self._by_folder.get(file.folder, {}).values()):
            if place.file != file.id and place.is_in(file) and not _is_there(place, there):
                return place
        return None

    def seen(self, there: Iterable[FileId]) -> tuple[list[Place], list[Place]]:
        """Given the files there are: the places that are to be kept because their files are still seen, each once a
        day, and those to be forgotten because nobody has seen their files for long, which it hasn't any more."""
        now, seen = time.time(), list[Place]()
        for file_id in there:
            for place in self._of(file_id):
                if now - place.seen_s > INGEST_SEEN_S:
                    seen.append(place)
        new = {place.id for place in seen}
        gone = [one for one in self._places.values() if now - one.seen_s > INGEST_PLACES_KEPT_S and one.id not in new]
        for place in gone:
            self.remove(place)
        return seen, gone

    def _of(self, file_id: FileId) -> list[Place]:
        return list(self._by_file.get(file_id, {}).values())


def _is_there(place: Place, there: Mapping[FileId, Seen]) -> bool:
    try:
        file = OpenFile(there[place.file].path)
    except (KeyError, OSError):
        return False
    try:
        return file.id == place.file and place.is_in(file)
    finally:
        file.close()
