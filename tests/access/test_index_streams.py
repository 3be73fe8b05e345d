"""Who may write an index stream, and who may only search it."""

from __future__ import annotations

from pathlib import Path

import pytest

import nadi
from nadi.errors import PermissionDeniedError

from .support import guarded, user


def test_an_index_is_searched_by_who_may_read_and_written_by_who_may_write(tmp_path: Path) -> None:
    with guarded(tmp_path) as server:

        def connected(name: str) -> nadi.StreamManager:
            return nadi.StreamManager(server.controller_uri, credentials=user(name))

        with connected("root") as manager:
            manager.create_scope("home")
            manager.create_stream("home", "index")
        with connected("writer") as manager, manager.create_index_writer("home", "index", ["t"]) as writer:
            for t in range(3):
                writer.append({"t": t})
        with connected("reader") as manager:
            reader = manager.create_index_reader("home", "index")
            assert reader.search("t", 2) == 2 * 4096
            assert [record.value("t") for record in reader.read()] == [0, 1, 2]
            with pytest.raises(PermissionDeniedError), manager.create_index_writer("home", "index", ["t"]) as refused:
                refused.append({"t": 3})
        with connected("stranger") as manager, pytest.raises(PermissionDeniedError):
            manager.create_index_reader("home", "index").first()
