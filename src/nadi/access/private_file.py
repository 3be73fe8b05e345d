"""Files that nobody but their owner may read."""

from __future__ import annotations

import os
from pathlib import Path


def replace_private_file(path: Path, data: bytes) -> None:
    """Make the file, or replace it as a whole: its bytes are on the disk before it takes its place."""
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
