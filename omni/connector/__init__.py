"""The connector contract, and building blocks of connectors that copy payloads through a pool of memory."""

from omni.connector.base import Connector, EdgeEnd, Pending, Reach, Received, Receiver, Ref, Sender

__all__ = ["Connector", "EdgeEnd", "Pending", "Reach", "Received", "Receiver", "Ref", "Sender"]
