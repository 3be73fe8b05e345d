"""What `nadi up` prints until it is ready, and where it says that it listens."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence


def said_until_ready(process: subprocess.Popen[str]) -> list[str]:
    """The lines, without their ends; all of them if it ends before. Its standard output is a pipe."""
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line.rstrip())
        if line.startswith("Press"):
            break
    return said


def doors(said: Sequence[str]) -> dict[str, str]:
    """What it told of itself, by the words before it, such as "REST" and "segment store"."""
    return dict(re.findall(r"^  (\S+(?: \S+)*)  +(.+)$", "\n".join(said), re.MULTILINE))
