"""A new version of a job on old data: it catches up with the running one, is compared with it, and takes over from it.

`replay` is what users call, `takeover` the steps, each of which may be taken again, and `comparison` compares outputs.
"""

from __future__ import annotations

from nadi.spark.handover.planning import HandedOverError
from nadi.spark.replay.comparison import Comparison
from nadi.spark.replay.replay import Replay
from nadi.spark.replay.takeover import Behind

__all__ = ["Behind", "Comparison", "HandedOverError", "Replay"]
