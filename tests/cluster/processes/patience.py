"""Time limit for processes under test, and the root of the repository."""

from __future__ import annotations

from pathlib import Path

PATIENCE_S = 60.0  # for anything that must happen eventually, on a machine that may pause for seconds
ROOT = Path(__file__).parents[3]
