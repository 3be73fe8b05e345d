"""Who may note times, and who may only read by them; the controller's own way to a store that checks."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import nadi
from nadi.client import TimeWindow
from nadi.errors import PermissionDeniedError
from tests.support.waiting import until

from .support import guarded, user


def test_times_are_noted_by_who_may_write_and_read_by_who_may_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NADI_LIMITS", "log_file_bytes=16777216,watermark_period_s=0.2")
    with guarded(tmp_path) as server:

        def connected(name: str) -> nadi.StreamManager:
            return nadi.StreamManager(server.controller_uri, credentials=user(name))

        with connected("root") as manager:
            manager.create_scope("home")
            manager.create_stream("home", "meters")
        with connected("writer") as manager, manager.create_writer("home", "meters") as writer:
            writer.write_event(b"event")
            writer.note_time(10).result(60)
        with connected("reader") as manager:
            cuts = manager.cuts("home", "meters")
            deadline = time.monotonic() + 60
            while (cut := cuts.after_event_time(10)) is None:
                assert time.monotonic() < deadline, "no watermark came"
                time.sleep(0.05)
            with manager.create_reader("home", "meters", end=cut) as reader:
                assert reader.current_time_window() == TimeWindow(None, 10)
        with connected("stranger") as manager, pytest.raises(PermissionDeniedError):
            manager.cuts("home", "meters").after_event_time(10)


def test_retention_by_event_time_reads_what_users_protect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NADI_LIMITS", "log_file_bytes=16777216,retention_period_s=0.5,retention_settle_s=1")
    with guarded(tmp_path) as server, nadi.StreamManager(server.controller_uri, credentials=user("root")) as manager:
        manager.create_scope("home")
        policy = nadi.client.RetentionPolicy.by_time(1_000, by_event_time=True)
        manager.create_stream("home", "meters", retention=policy, event_time="at")
        with manager.create_writer("home", "meters") as writer:
            for second in range(20_000):
                writer.write_event(b'{"at": %d}' % second)
        until(lambda: manager.kept("home", "meters").size_bytes == 0)
