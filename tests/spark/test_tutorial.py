"""The tutorial's commands print what it prints. Its program runs in the shared session, as a session starts slowly."""

from __future__ import annotations

import re
import shutil
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

import nadi
from tests.test_documents import ROOT, run, steps

pytestmark = [pytest.mark.spark, pytest.mark.skipif(shutil.which("curl") is None, reason="an example is for curl")]


def test_tutorial_commands_print_what_is_printed(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "tutorial.md").read_text(), re.DOTALL)
    with nadi.embedded(tmp_path / "data", rest_port=0) as server:
        monkeypatch.setenv("NADI_CONTROLLER", server.controller_uri)
        for command, printed in steps("tutorial.md"):
            if command == "python day.py 2>spark.log":
                with redirect_stdout(StringIO()) as output:
                    exec(compile(program, "day.py", "exec"), {})
                found = output.getvalue()
            else:
                _, found = run(command, tmp_path, NADI_REST=server.rest_uri or "")
            assert found == printed, command
