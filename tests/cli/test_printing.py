"""Printed texts are unchanged, whatever they mean to the library that colours them, and can't control the terminal."""

from __future__ import annotations

import csv
import io

import pytest

from nadi.cli.printing import Form, failure, say, show


def test_failure_keeps_square_brackets(capsys: pytest.CaptureFixture[str]) -> None:
    assert failure(ValueError("no such folder: /data/[red]/x")).exit_code == 1
    assert capsys.readouterr().err == "error: no such folder: /data/[red]/x\n"


def test_say_does_not_wrap_lines(capsys: pytest.CaptureFixture[str]) -> None:
    say("[bold] " + "long " * 100)
    assert capsys.readouterr().out == "[bold] " + "long " * 100 + "\n"


def test_show_keeps_square_brackets_and_groups_thousands(capsys: pytest.CaptureFixture[str]) -> None:
    show([{"name": "[x]", "bytes": 12345, "tags": ["a", "b"]}], ["name", "bytes", "tags"], form=Form.TABLE, empty="")
    assert capsys.readouterr().out.split() == ["name", "bytes", "tags", "[x]", "12,345", "a,", "b"]


def test_show_without_terminal_prints_one_line_per_row(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    row = {"name": "x" * 200, "note": "several words " * 20}
    show([row], ["name", "note"], form=Form.TABLE, empty="")
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()][1:] == [
        "x" * 200 + "  " + row["note"].rstrip()
    ]
    monkeypatch.setenv("COLUMNS", "40")
    show([row], ["name", "note"], form=Form.TABLE, empty="")
    assert all(len(line) <= 40 for line in capsys.readouterr().out.splitlines())


def test_control_characters_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    show([{"note": "\x1b[2Jgone\r\nnext\u202e\x9b é 日"}], ["note"], form=Form.TABLE, empty="")
    assert capsys.readouterr().out.splitlines()[1].rstrip() == r"\x1b[2Jgone\r\nnext\u202e\x9b é 日"
    failure(ValueError("no \x1b[2J,\nnor \x07"))
    assert capsys.readouterr().err == "error: no \\x1b[2J,\nnor \\x07\n"


def test_show_prints_unknown_values_as_a_dash(capsys: pytest.CaptureFixture[str]) -> None:
    show([{"name": "f", "unread_bytes": None}], ["name", "unread_bytes"], form=Form.TABLE, empty="")
    assert capsys.readouterr().out.split() == ["name", "unread", "bytes", "f", "-"]


def test_show_as_csv_has_all_fields_and_nested_json(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"name": 'a "b", c', "bytes": 12345, "tags": ["a", "b"], "sealed": True, "oldest": None},
        {"name": "line\nbreak", "bytes": 0.5, "tags": [], "sealed": False, "oldest": "now"},
    ]
    show(rows, ["name"], form=Form.CSV, empty="none")
    assert list(csv.DictReader(io.StringIO(capsys.readouterr().out))) == [
        {"name": 'a "b", c', "bytes": "12345", "tags": '["a","b"]', "sealed": "true", "oldest": ""},
        {"name": "line\nbreak", "bytes": "0.5", "tags": "[]", "sealed": "false", "oldest": "now"},
    ]
    show([], ["name", "bytes"], form=Form.CSV, empty="none")
    assert capsys.readouterr().out == "name,bytes\n"
