"""A stage that is cut across engines: its ranks, and the collectives between them."""

from omni.parallel.communicator import Arrival, Communicator
from omni.parallel.ranks import EqualRanks, PipelineRank, RankChannel, RankLayout, Ranks
from omni.parallel.silent import SilentCommunicator, silent_ranks
from omni.parallel.torch_group import open_communicator

__all__ = [
    "Arrival",
    "Communicator",
    "EqualRanks",
    "PipelineRank",
    "RankChannel",
    "RankLayout",
    "Ranks",
    "SilentCommunicator",
    "open_communicator",
    "silent_ranks",
]
