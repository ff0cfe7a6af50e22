"""Payload that is moved while two consumers read it on streams of their own, the one quick, the other not."""

import numpy as np
import torch
from torch import Tensor

from omni.connector import Ref
from omni.device import Device
from omni.payload import PageSlice
from omni.stage import Outbound, Produced
from omni.testing import SimulatedDevice
from omni.testing.stages.loan import lend
from omni_ar.options import ArOptions
from tests.support.ar_driver import ArDriver, plain_prompt, take_rows
from tests.support.small_text import SmallText, greedy

_MODEL = SmallText(payload=True)
_LENT = [(7 * place * place) % 61 for place in range(26)]
_NEXT = [(3 * place + 5) % 61 for place in range(36)]
_POSITIONS = [0, 11, 25]
_TOKENS = 8
_BLOCKS = 12
"""Of 4 tokens: each request fits alone, and no two."""
_QUICK = frozenset({"ar", "ar-payload", "quick"})


class Reader:
    """One consumer. lent: its unreleased payloads. found: the results of its gathers."""

    def __init__(self, device: Device, name: str) -> None:
        self._device = device
        self._stream = device.stream(name)
        self.lent: list[tuple[Produced, Ref]] = []
        self.found: list[Tensor] = []

    def look(self) -> None:
        """Gathers its payloads and keeps its leases, as consumers do that gather in parts."""
        for produced, _ in self.lent:
            (part,) = produced.payload.tensors.values()
            assert isinstance(part, PageSlice)
            assert produced.ready.done()
            assert part.moved.done()
            out = torch.empty(len(part.slots), part.pages.shape[-1])
            slots_n = torch.from_numpy(part.slots.copy())
            self._device.launch(self._stream, take_rows, part.pages, slots_n, out)
            part.gathered(self._device.record(self._stream))
            self.found.append(out)


class TwoReaders(ArDriver):
    """A text stage with little memory, which lends every payload to both."""

    def __init__(self, device: Device) -> None:
        options = ArOptions(max_num_seqs=2, block_size=4, num_blocks=_BLOCKS, prefix_cache=False)
        super().__init__(_MODEL, device, options)
        self.slow, self.quick = Reader(device, "slow"), Reader(device, "quick")

    def _take(self, message: Outbound) -> None:
        if isinstance(message, Produced) and message.payload.tensors:
            for reader in (self.slow, self.quick):
                ref, _ = lend(message.payload, message.ready)
                message.add(ref)
                reader.lent.append((message, ref))
            message.close()
        super()._take(message)


def play(device: SimulatedDevice) -> None:
    """Blocks are wanted while a slow gather runs and a quick one is over. Raises AssertionError for a wrong row.

    The device has no seed: the test orders its work.
    """
    driver = TwoReaders(device)
    driver.ask("lent", plain_prompt(_LENT, payload_positions=np.array(_POSITIONS)), max_tokens=_TOKENS)
    driver.run()
    with torch.inference_mode():
        driver.slow.look()
        driver.quick.look()
    driver.ask("next", plain_prompt(_NEXT, payload_positions=np.arange(len(_NEXT))), max_tokens=_TOKENS)
    for _ in range(40):
        driver.tick()
        with torch.inference_mode():
            device.run(_QUICK)
    assert driver.counter("spilled_rows") == len(_POSITIONS)
    driver.run()
    assert driver.tokens("next") == greedy(_MODEL, _NEXT, _TOKENS)
    with torch.inference_mode():
        wanted = _MODEL.whole(_LENT)[_POSITIONS]
    for reader in (driver.slow, driver.quick):
        (found,) = reader.found
        torch.testing.assert_close(found, wanted, msg=lambda message: f"a gather from the old place: {message}")
