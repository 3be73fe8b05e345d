"""How long processes under test may take, and where their programs are."""

from __future__ import annotations

from pathlib import Path

PATIENCE_S = 60.0  # for whatever must happen in the end, on a machine that stops for seconds
ROOT = Path(__file__).parents[3]
