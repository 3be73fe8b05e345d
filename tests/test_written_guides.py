"""The examples of the guides to serializers and testing run as printed."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
ROOT = Path(__file__).parents[1]


def examples(document: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)


def test_the_guide_to_serializers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    # its examples are one program; the name is that of a module, for msgspec looks its types up there
    names = {"__name__": __name__}
    for example in examples("docs/serializers.md"):
        exec(compile(example, "docs/serializers.md", "exec"), names)
    assert capsys.readouterr().out.splitlines() == [
        """12 b'{"meter":"kitchen","wh":12}'""",
        "unknown",
        "hall",
        "reading old events: $.meter: integer is read where string was written",
        "[1, 2]",
    ]


def test_the_guide_to_testing(pytester: pytest.Pytester) -> None:
    files = {example.partition("\n")[0].removeprefix("# "): example for example in examples("docs/testing.md")}
    assert sorted(files) == ["conftest.py", "script.py", "test_crash.py", "test_readings.py"]
    for name, text in files.items():
        (pytester.path / name).write_text(text)
    result = pytester.runpytest_inprocess(
        *("-p", "no:cacheprovider", "--strict-markers", "-o", "asyncio_default_fixture_loop_scope=function")
    )
    result.assert_outcomes(passed=2)
    script = pytester.run(sys.executable, "script.py")
    assert script.outlines == ["[b'a']"]
