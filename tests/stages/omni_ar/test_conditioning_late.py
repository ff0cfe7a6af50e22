"""Device rows that condition steps, on a device that is late: a copy that fails half-way is over before its source is reused."""

import functools

import pytest
import torch

from omni.stage import Failed
from omni.testing.faults import FaultyStirredDevice, Owner
from omni_ar.options import ArOptions
from tests.stages.omni_ar.row_feeder import MODEL, WIDTH, RowFeeder, random_pages
from tests.support.ar_driver import ArDriver
from tests.support.faults import idle, simulate
from tests.support.tiers import few

pytestmark = pytest.mark.thorough

TOKENS = 9
PROMPTS = [[(7 * place + 5 * index) % 53 for place in range(2 + 3 * index)] for index in range(3)]
SEEDS = range(3)


class Lenders:
    """Feeds each request rows from pages of its own and from a tensor. All of them are overwritten when they are free."""

    def __init__(self, device: FaultyStirredDevice) -> None:
        self.owner = Owner(device)
        self.driver = ArDriver(MODEL, device, ArOptions(max_num_seqs=2, block_size=3))
        self.feed = RowFeeder(self.driver, random_pages())

    def give(self, index: int) -> None:
        name, feed = str(index), self.feed
        feed.open(name, PROMPTS[index], TOKENS)
        feed.pages = random_pages(seed=index)
        self.owner.lend(feed.rows(name, [1, 2, 3], [index, 9, 4 * index]).ref, feed.pages)
        # The conditioning is kept apart from memory that is written over.
        tensor = torch.randn(2, WIDTH, generator=torch.Generator().manual_seed(index))
        feed.heard[name] += [(text, row_W.clone()) for text, row_W in zip([5, 6], tensor, strict=True)]
        kept = list(feed.heard[name])
        self.owner.lend(feed.tensor(name, [5, 6], tensor).ref, tensor)
        feed.heard[name] = kept
        feed.end(name)

    def turn(self) -> bool:
        return self.driver.tick() | self.owner.reuse()

    def is_finished(self) -> bool:
        ended = len(self.driver.ends) == len(PROMPTS)
        return ended and not self.owner.waiting and idle(self.driver.worker)


@pytest.mark.parametrize("after", [False, True], ids=["instead", "after"])
@pytest.mark.parametrize("number", few(1, [1, 0]))
@pytest.mark.parametrize("phase", ["gather_rows", "copy_rows"])
def test_rows_whose_copy_fails(phase: str, number: int, after: bool):
    for seed in SEEDS:
        device = FaultyStirredDevice(seed)
        lenders = Lenders(device)
        driver = lenders.driver
        simulation = simulate(device, lenders.turn, functools.partial(Lenders.is_finished, lenders))
        for index in range(len(PROMPTS)):
            simulation.sometime(10, functools.partial(lenders.give, index), f"give {index}")
        device.fail(phase, number, after=after)
        simulation.run()
        assert device.failures == 1
        failed = {name for name, end in driver.ends.items() if isinstance(end, Failed)}
        assert len(failed) == 1, "the copies of each are launched by themselves"
        for name in set(driver.ends) - failed:
            assert driver.tokens(name) == lenders.feed.expected(name)
        device.assert_no_races()
