"""Edges whose consumer asks for host memory: payload comes off the device here, and nowhere else."""

from omni.engine.host.connector import HostConnector

__all__ = ["HostConnector"]
