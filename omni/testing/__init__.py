"""Conformance suites that plugin authors run in their own tests."""

from omni.testing.connectors import check_connector

__all__ = ["check_connector"]
