"""Ranks in threads: what they share is there before their threads start."""

import threading
import time
from queue import Queue

import pytest
import torch

from omni.parallel import PipelineRank, RankLayout, Ranks
from omni.testing import ranks
from tests.support.patience import PATIENCE_SECONDS


class SlowQueue(Queue[torch.Tensor | None]):
    """Two threads that each make one for the same pair of ranks both do so before either has it."""

    def __init__(self) -> None:
        time.sleep(0.01)
        super().__init__()


def test_the_first_tensor_of_a_pair_arrives_though_both_ranks_come_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "Queue", SlowQueue)
    sender, receiver = (pipeline_of(each) for each in ranks.thread_ranks(RankLayout(pipeline=2), seconds=5.0)[::-1])
    start, x = threading.Barrier(2, timeout=PATIENCE_SECONDS), torch.zeros(1)

    def send() -> None:
        start.wait()
        sender.hidden.send(torch.ones(1), receiver.position)

    thread = threading.Thread(target=send)
    thread.start()
    start.wait()
    receiver.hidden.receive(x, sender.position).wait()
    thread.join()
    assert x.tolist() == [1.0]


def pipeline_of(own: Ranks) -> PipelineRank:
    assert own.pipeline is not None
    return own.pipeline
