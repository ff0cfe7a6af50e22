"""The connector contract: how a payload gets from one stage to another."""

from omni.connector.base import Connector, Pending, Reach, Received, Ref

__all__ = ["Connector", "Pending", "Reach", "Received", "Ref"]
