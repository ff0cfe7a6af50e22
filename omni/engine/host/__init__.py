"""Edges with consumers in host memory: the only place where payloads are copied off the device."""

from omni.engine.host.connector import HostConnector

__all__ = ["HostConnector"]
