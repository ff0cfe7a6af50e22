"""Drives one autoregressive stage by hand."""

from collections.abc import Sequence

import numpy as np
import torch

from omni.chunks import TokenChunk
from omni.connector import Ref
from omni.device import COMPLETED, Device
from omni.device.cpu import CpuDevice
from omni.errors import OmniError
from omni.payload import Payload
from omni.sampling_params import SamplingParams
from omni.stage import Done, Failed, Open, Outbound, Produced
from omni_ar.attention import TorchPagedAttention
from omni_ar.inputs import Prompt
from omni_ar.model import ArModel
from omni_ar.options import ArOptions
from omni_ar.run.limits import Limits
from omni_ar.run.runner import Runner
from omni_ar.run.worker import ArWorker
from support.stage_driver import SOURCE, StageDriver


def plain_prompt(ids: Sequence[int], **changes: object) -> Prompt:
    """A prompt of token ids, positions counted from 0."""
    array = np.array(ids, np.int64)
    fields: dict[str, object] = {
        "columns": array[None],
        "positions": np.arange(len(array))[None],
        "next_position": len(array),
        "penalized_ids": np.unique(array),
    }
    return Prompt(**(fields | changes))


class ArDriver(StageDriver):
    """lent: references that consumers of the stage's payloads have not released."""

    def __init__(self, model: ArModel, device: Device | None = None, options: ArOptions | None = None) -> None:
        self.device = device or CpuDevice()
        options = options or ArOptions(max_num_seqs=4, block_size=4)
        limits = Limits.of("text", options, model.shape)
        with torch.inference_mode():
            runner = Runner("ar", self.device, model, TorchPagedAttention(), limits, torch.float32, 0)
            self.worker_stream = runner.stream
            super().__init__(ArWorker("text", runner, model.shape, limits, options), runner.stream)

        self.lent: list[Ref] = []

    def ask(self, request_id: str, prompt: Sequence[int] | Prompt, **sampling: object) -> None:
        """Opens a request and feeds its prompt."""
        self.worker.inbox.append(Open(request_id, SamplingParams(**sampling), frozenset({SOURCE})))
        given = prompt if isinstance(prompt, Prompt) else plain_prompt(prompt)
        self.feed_host(request_id, Payload(given))
        self.end(request_id)

    def tick(self) -> bool:
        with torch.inference_mode():
            return super().tick()

    def run(self) -> None:
        """Until nothing happens any more."""
        with torch.inference_mode():
            self.device.synchronize()
            self.settle(self.device)

    def _take(self, message: Outbound) -> None:
        if isinstance(message, Produced) and message.payload.tensors:
            self.lent.append(self.connector.send(message.payload, message.ready, self.worker_stream))
            message.hold.take(self.lent[-1])
        super()._take(message)

    def tokens(self, request_id: str) -> list[int]:
        metas = [produced.payload.meta for produced in self.produced.get(request_id, [])]
        return [i for meta in metas if isinstance(meta, TokenChunk) for i in meta.ids]

    def release_lent(self) -> None:
        """What consumers do when they have gathered."""
        while self.lent:
            self.connector.release(self.lent.pop(), COMPLETED)

    def done(self, request_id: str) -> Done:
        end = self.ends[request_id]
        assert isinstance(end, Done), end
        return end

    def error(self, request_id: str) -> OmniError:
        end = self.ends[request_id]
        assert isinstance(end, Failed), end
        return end.error
