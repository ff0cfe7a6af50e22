"""A vocoder stage that is loaded: the largest chunks it may be given, and its worker."""

from typing import Any

import torch

from omni.batch_sizes import captured_sizes
from omni.device import COMPLETED, AllocationCount
from omni.frames import CodeFrames
from omni.payload import Payload
from omni.sampling_params import SamplingParams
from omni.stage import Ended, Feed, Footprint, Inbound, Open, StageContext, capture_progress, module_bytes, rehearse
from omni_vocoder.chunks import ChunkSizes
from omni_vocoder.model import VocoderModel
from omni_vocoder.options import VocoderOptions
from omni_vocoder.worker import VocoderWorker

_SOURCE = "frontend"


class LoadedVocoder:
    """Everything that outlives a chunk is allocated here, with the worker."""

    def __init__(self, context: StageContext, model: VocoderModel[Any]) -> None:
        assert isinstance(context.options, VocoderOptions)
        self._context = context
        self._options = context.options
        self._model = model
        count = AllocationCount(context.device.torch_device)
        with count:
            self._worker = self._new_worker()
        self.footprint = Footprint(weights=module_bytes(model), fixed=count.live)

    def measure(self) -> int:
        name, device, messages = self._context.stage.name, self._context.device, self._all_rows()

        def run_largest_chunks() -> None:
            rehearse(name, self._worker, device, messages)
            if self._context.graphs:
                self._worker.capture(self._captured_sizes()[:1])  # the others fit where it was

        peak = device.measure_peak(run_largest_chunks)
        # A new worker counts from 0. The old one's memory goes first: there may not be room for both.
        self._worker.close()
        del self._worker
        self._worker = self._new_worker()
        return peak

    def start(self, pages: int) -> VocoderWorker:
        if self._context.graphs:
            self._worker.capture(capture_progress(self._context.stage.name, self._captured_sizes()))
        return self._worker

    def _captured_sizes(self) -> tuple[int, ...]:
        return captured_sizes(self._options.graph_batch_sizes, self._options.max_num_seqs)

    def _new_worker(self) -> VocoderWorker:
        stage = self._context.stage
        return VocoderWorker(stage.name, self._context.device, self._model, self._options, stage.priority)

    def _all_rows(self) -> list[Inbound]:
        """A request for each row, with the frames of a first chunk and a later one: rows in step share their chunks."""
        sizes = ChunkSizes.of(self._options, self._model)
        count = sizes.first + sizes.later
        codes_NG = torch.zeros((count, self._model.num_groups), dtype=torch.int64, device="cpu")
        messages: list[Inbound] = []
        for row in range(self._options.max_num_seqs):
            request, payload = str(row), Payload(CodeFrames(count=count), {"codes": codes_NG})
            messages.append(Open(request, SamplingParams(), frozenset({_SOURCE})))
            messages.append(Feed(request, payload, COMPLETED))
            messages.append(Ended(request, _SOURCE))
        return messages
