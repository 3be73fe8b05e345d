"""Settings for all tests."""

from __future__ import annotations

import asyncio
import gc
import re
import signal
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import uvloop
from hypothesis import settings

from tests.support.preloaded import fork_programs

# The slowest files, by parts of their paths: they start first, so that all processes end together.
LONG = (
    "tests/spark/",  # five minutes, in one process
    "compatibility/",
    "simulation/",
    "browser/",
    "migration/",
    "test_stopping.py",
    "functions/",
    "streamtables/",
    "test_event_time",
    "test_cluster.py",
    "test_docs.py",
    "test_disk_full.py",
    "cluster/",
    "access/",
    "web/test_events.py",
    "crash/",
    "damage/",
    "notebook/",
    "test_indexing.py",
    "test_crashes.py",
    "test_check_and_repair.py",
    "readergroup/",
    "fuzz/",
    "test_installed.py",
    "test_written_guides.py",
    "soak/",
    "retention/",
    "testing/",
)

SHARED = {"Spark session": r"\bspark: Any|conftest import .*\bWorld\b", "Java tests": r"java_run import"}

fork_programs()

# Half of the usual examples, and no deadline for one: a shared machine may stop for longer than any useful one.
settings.register_profile("nadi", deadline=None, max_examples=50)
settings.load_profile("nadi")


# A shell's job in the background ignores Ctrl-C, and so would all that tests start, and then interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


gc.disable()  # until all tests are collected, as each process does: they remain


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> int:
        file = item.nodeid.partition("::")[0]
        return next((rank for rank, part in enumerate(LONG) if part in file), len(LONG))

    items.sort(key=rank)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Run each file's tests in one process, and all files that share a Spark session in the same one, as a session's
    first test costs as much as dozens of later ones; also all that need the compiled Java tests."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    scheduling = LoadFileScheduling(config, log)

    @cache
    def scope_of(file: str) -> str:
        text = (config.rootpath / file).read_text()
        return next((shared for shared, sign in SHARED.items() if re.search(sign, text)), file)

    scheduling._split_scope = lambda nodeid: scope_of(nodeid.partition("::")[0])
    return scheduling


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Return the loop of async tests; a single factory, so that test names don't change."""
    if item.get_closest_marker("uvloop"):
        return {"uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}
