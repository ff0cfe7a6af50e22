"""The connector contract: the transport of a payload from one stage to another."""

from omni.connector.base import Connector, Pending, Reach, Received, Ref

__all__ = ["Connector", "Pending", "Reach", "Received", "Ref"]
