"""docs/compatibility.md says what the tests recorded."""

from __future__ import annotations

from tests.compatibility import table
from tests.compatibility.record import Served


def test_the_tables_are_those_of_the_record() -> None:
    document = table.DOCUMENT.read_text()
    assert document.count(table.BEGIN) == document.count(table.END) == 1
    assert table.rewritten(document, table.load()) == document, "run `python -m tests.compatibility.table`"


def test_what_is_new_is_missed() -> None:
    known = {"nadi": Served({"createScope": {"SUCCESS"}}, {"Hello"}, {"Hello"})}
    run = {
        "nadi": {
            "test": Served({"createScope": {"SUCCESS", "SCOPE_EXISTS"}}, {"Hello", "ReadTable"}, {"Hello", "KeepAlive"})
        }
    }
    assert table.missing(run, known) == ["nadi: createScope SCOPE_EXISTS", "nadi: receives ReadTable"]
    assert table.missing({"somebody": run["nadi"]}, known) == []
