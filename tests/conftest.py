"""Settings of all tests."""

from __future__ import annotations

from hypothesis import settings

# No deadline for an example: a shared machine may stop for longer than any useful one.
settings.register_profile("nadi", deadline=None)
settings.load_profile("nadi")
