"""The output of `nadi up` until it is ready, and the addresses it listens on."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence


def read_until_ready(process: subprocess.Popen[str]) -> list[str]:
    """Return the lines, without their ends; all of them if the process ends early. Its standard output is a pipe."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line.rstrip())
        if line.startswith("Press"):
            break
    return lines


def addresses_in(lines: Sequence[str]) -> dict[str, str]:
    """Return the addresses by label, such as "REST" and "segment store"."""
    return dict(re.findall(r"^  (\S+(?: \S+)*)  +(.+)$", "\n".join(lines), re.MULTILINE))
