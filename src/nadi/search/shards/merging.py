"""Makes one shard of several. Tantivy merges their segments by its own rule, so they are to be as `to_merge` has them;
what it leaves apart are several segments in one shard, and found all the same."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nadi.limits import SEARCH_WRITER_BYTES
from nadi.search.analysis import prepared, schema_of
from nadi.search.fields import Field
from nadi.search.shards.building import work_folder
from nadi.search.shards.packing import META, packed, unpack, write_meta

_MERGER_BYTES = 15_000_000


def merge(objects: Sequence[tuple[str, memoryview]], fields: tuple[Field, ...]) -> list[memoryview]:
    """The parts of the object of all. Blocks; call it in a thread."""
    from tantivy import Index

    with work_folder() as folder:
        make_empty(folder, fields)
        segments = [segment for shard, data in objects for segment in unpack(data, folder, shard)]
        write_meta(folder, (folder / META).read_bytes(), segments)
        index = prepared(Index.open(str(folder)))
        writer = index.writer(min(_MERGER_BYTES, SEARCH_WRITER_BYTES), 1)
        writer.commit()  # has tantivy look for what it could merge
        writer.wait_merging_threads()
        return packed(folder)


def make_empty(folder: Path, fields: tuple[Field, ...]) -> None:
    """An index of tantivy's without any events."""
    from tantivy import Index

    Index(schema_of(fields), path=str(folder))
