"""Who may make bookmarks, and who may only find them."""

from __future__ import annotations

from pathlib import Path

import pytest

import nadi
from nadi.errors import PermissionDeniedError

from .support import guarded, user


def test_bookmarks_ask_for_the_right_to_their_table(tmp_path: Path) -> None:
    with guarded(tmp_path) as server:

        def connected(name: str) -> nadi.StreamManager:
            return nadi.StreamManager(server.controller_uri, credentials=user(name))

        with connected("root") as manager:
            manager.create_scope("home")
            manager.create_stream("home", "meters")
        with connected("reader") as manager:
            assert manager.bookmarks("home").list() == []
        with connected("writer") as manager:
            made = manager.bookmarks("home").create("noon", manager.cuts("home", "meters").tail())
        with connected("reader") as manager:
            assert manager.bookmarks("home").list() == [made]
            assert manager.cuts("home", "meters").named("noon") == made.cut
            with pytest.raises(PermissionDeniedError):
                manager.bookmarks("home").delete("noon")
        with connected("stranger") as manager, pytest.raises(PermissionDeniedError):
            manager.bookmarks("home").list()
