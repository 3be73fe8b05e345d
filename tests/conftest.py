"""Settings of all tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# No deadline for an example, nor for drawing it: a shared machine may stop for longer than any useful one.
settings.register_profile("nadi", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("nadi")
