"""A stage that is cut across engines: its ranks, and the collectives between them."""

from omni.parallel.communicator import Communicator
from omni.parallel.ranks import RankChannel, Ranks

__all__ = ["Communicator", "RankChannel", "Ranks"]
