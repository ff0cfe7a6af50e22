"""A stage that is cut across engines: its ranks, and the collectives between them."""

from omni.parallel.communicator import Communicator, PendingReceive
from omni.parallel.ranks import EqualRanks, PipelineRank, RankChannel, RankLayout, Ranks
from omni.parallel.silent import SilentCommunicator, silent_ranks
from omni.parallel.torch_group import open_communicator

__all__ = [
    "Communicator",
    "EqualRanks",
    "PendingReceive",
    "PipelineRank",
    "RankChannel",
    "RankLayout",
    "Ranks",
    "SilentCommunicator",
    "open_communicator",
    "silent_ranks",
]
