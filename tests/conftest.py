"""What holds for every test."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# How fast examples are made says something about the machine and nothing about the code.
settings.register_profile("steady", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")
