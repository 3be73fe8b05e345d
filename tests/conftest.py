"""Settings of all tests."""

from __future__ import annotations

import os

from hypothesis import settings

# Read when nadi is imported, here and in the servers that tests start: whole log files are written in advance.
os.environ.setdefault("NADI_LIMITS", "log_file_bytes=16777216")

# No deadline for an example: a shared machine may stop for longer than any useful one.
settings.register_profile("nadi", deadline=None)
settings.load_profile("nadi")
