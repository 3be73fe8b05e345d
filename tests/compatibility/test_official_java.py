"""The official Java client against nadi: JUnit tests in `java`, each reported as a separate test.

All selected tests run together in one Java process when the first is due. Outcomes come from Surefire's report files; a
test that they don't name has failed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeGuard

import pytest
from _pytest.mark import ParameterSet

from tests.compatibility.conftest import OFFICIAL_JAVA
from tests.compatibility.java_run import FIRST_JAVA_TIMEOUT_S, JavaRun, java_tests
from tests.compatibility.recording_server import RecordingServer

# Java tests of missing features, with the reason. They aren't run, because they would hang.
PENDING: dict[str, str] = {}
# These need a server with authentication: see test_official_java_access.py.
WITH_USERS = "AccessTest."


def _named() -> Iterator[ParameterSet]:
    for name in java_tests():
        if not name.startswith(WITH_USERS):
            lacks = PENDING.get(name)
            yield pytest.param(name, marks=[pytest.mark.xfail(run=False, reason=lacks)] if lacks else [])


@pytest.fixture(scope="module")
def java_run(
    request: pytest.FixtureRequest, recording_server: RecordingServer, tmp_path_factory: pytest.TempPathFactory
) -> JavaRun:
    selected = {str(item.callspec.params["name"]) for item in request.session.items if _is_java_test(item)}
    names = sorted(selected - PENDING.keys())
    tests = {name.split(".")[0] for name in names}
    doors = {test: recording_server.open_door(OFFICIAL_JAVA, test) for test in tests}
    try:
        uris = {f"uri.{test}": door.controller_uri for test, door in doors.items()}
        return JavaRun(names, uris, tmp_path_factory.mktemp("surefire"))
    finally:
        for test in tests:
            recording_server.close_doors(test)


def _is_java_test(item: pytest.Item) -> TypeGuard[pytest.Function]:
    return isinstance(item, pytest.Function) and "java_run" in item.fixturenames


@pytest.mark.compatibility
@pytest.mark.timeout(FIRST_JAVA_TIMEOUT_S)
@pytest.mark.parametrize("name", list(_named()))
def test_java(name: str, java_run: JavaRun) -> None:
    java_run.check(name)
