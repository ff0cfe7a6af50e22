"""Conformance suites and guards that plugin authors run in their own tests."""

from omni.testing.connectors import check_connector
from omni.testing.launch_guard import LaunchGuard

__all__ = ["LaunchGuard", "check_connector"]
