"""Drives one autoregressive stage by hand, and acts as the consumers of its payloads."""

import atexit
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace
from torch import Tensor

from omni.checkpoint import Checkpoint
from omni.connector import Pending
from omni.device import COMPLETED, CpuDevice, Device, Stream
from omni.device.graphs import captured_lengths, captured_sizes
from omni.errors import OmniError
from omni.parallel import Ranks
from omni.parallel.watch import StepWatch
from omni.payload import GeneratedTokens, LogprobsChunk, PageSlice, Payload
from omni.pipeline import Stage
from omni.plugin import DrafterEntry
from omni.sampling import NO_RULES, HostRules, SamplingParams
from omni.stage import Done, Failed, Listeners, Open, Outbound, Produced, StageContext
from omni.testing.stages.driver import SOURCE, StageDriver
from omni.testing.stages.loan import lend
from omni_ar.attention import AttentionBackend, TorchPagedAttention
from omni_ar.drafters.base import Drafter
from omni_ar.drafters.load import load_drafter
from omni_ar.inputs import Prompt, PromptHidden, StepInputs, TokenCodes, TokenHidden
from omni_ar.model import ArModel
from omni_ar.options import ArOptions
from omni_ar.plugin import omni_drafters
from omni_ar.processors import ProcessorRegistry
from omni_ar.run.limits import Limits
from omni_ar.run.runner import Runner, SourceFactory
from omni_ar.run.worker import ArWorker
from tests.support.deep_models import DEEP

TEXT = "text"
"""The edge of a codec model's conditioning."""


def plain_prompt(ids: Sequence[int], **changes: object) -> Prompt:
    """A prompt of token ids, positions counted from 0."""
    array = np.array(ids, np.int64)
    return replace(Prompt.of(array), **changes)


@dataclass(frozen=True)
class ReceivedPayload:
    """A payload with tensors whose last gather by its consumer is still to come. looks: results of its gathers meanwhile."""

    produced: Produced
    pending: Pending
    looks: list[Tensor] = field(default_factory=list)


class ArWorkerDriver(StageDriver):
    """lent: payloads that consumers have not gathered. rows: the gathered ones, by request, in order.

    looks: gathers of payloads that were not released with them, each with the last gather of its payload.
    """

    worker: ArWorker

    def __init__(self, worker: ArWorker, device: Device, stream: Stream) -> None:
        super().__init__(worker, stream)
        self.device = device
        self.consumer_stream = device.stream("consumer")
        self.lent: list[ReceivedPayload] = []
        self.rows: dict[str, list[tuple[PromptHidden | TokenHidden | TokenCodes, Tensor]]] = {}
        self.looks: list[tuple[Tensor, Tensor]] = []
        self._slots: list[Tensor] = []
        """Of all gathers: made on another stream than theirs, their memory must not be given to the next meanwhile."""

    def ask(
        self,
        request_id: str,
        prompt: Sequence[int] | Prompt,
        params: Mapping[str, object] = {},
        *,
        sources: Sequence[str] = (SOURCE,),
        order: tuple[int, int] = (0, 0),
        cache_salt: str = "",
        rules: HostRules = NO_RULES,
        sample_index: int = 0,
        **sampling: Any,
    ) -> None:
        """Opens a request and feeds its prompt. params, sampling: sampling parameters."""
        asked = replace(SamplingParams(), **{**params, **sampling})
        opened = Open(
            request_id,
            asked,
            frozenset(sources),
            order=order,
            cache_salt=cache_salt,
            sample_index=sample_index,
            rules=rules,
        )
        self.worker.inbox.append(opened)
        given = prompt if isinstance(prompt, Prompt) else plain_prompt(prompt)
        self.feed_host(request_id, Payload(given))
        if SOURCE in sources:
            self.end(request_id)

    def ask_all(
        self, prompts: Iterable[Sequence[int] | Prompt], params: Mapping[str, object] = {}, **sampling: Any
    ) -> None:
        """Asks for each prompt, named by its index."""
        for index, prompt in enumerate(prompts):
            self.ask(str(index), prompt, {**params, **sampling})

    def speak(
        self,
        request_id: str,
        prompt: Prompt,
        texts: Sequence[int] | None = None,
        params: Mapping[str, object] = {},
        *,
        pad: int | None = None,
        order: tuple[int, int] = (0, 0),
        cache_salt: str = "",
        **sampling: Any,
    ) -> None:
        """Opens a request of a codec model and feeds its prompt. texts, pad: its conditioning; None if `condition` feeds it."""
        sources = (SOURCE, TEXT)
        self.ask(request_id, prompt, {**params, **sampling}, sources=sources, order=order, cache_salt=cache_salt)
        if texts is not None:
            self.condition(request_id, texts, pad)

    def condition(self, request_id: str, texts: Sequence[int], pad: int | None = None) -> None:
        """Text ids of the next steps; with `pad`, which ends them, of all."""
        columns = np.array(texts, np.int64)[None]
        end = None if pad is None else np.array([pad])
        self.feed_host(request_id, Payload(StepInputs(columns=columns, pad=end)))
        if pad is not None:
            self.end(request_id, source=TEXT)

    def tick(self) -> bool:
        with torch.inference_mode():
            return super().tick()

    def run(self) -> None:
        """Until the stage is idle. Only open requests and ungathered payloads hold memory then."""
        with torch.inference_mode():
            self.device.synchronize()
            self.settle(self.device)
        assert self.worker.requests or self.lent or not self.held

    def _take(self, message: Outbound) -> None:
        if isinstance(message, Produced) and message.payload.tensors:
            ref, pending = lend(message.payload, message.ready)
            message.add(ref)
            self.lent.append(ReceivedPayload(message, pending))
        super()._take(message)

    def gather(self, *ids: str) -> bool:
        """Consumers gather the arrived payloads of these requests (all if none are named), in order. Returns whether any did."""
        left: list[ReceivedPayload] = []
        late: set[str] = set()
        with torch.inference_mode():  # a look at an event may make a device run
            for lent in self.lent:
                name = lent.produced.request_id
                (part,) = lent.produced.payload.tensors.values()
                assert isinstance(part, PageSlice)
                wanted = (not ids or name in ids) and name not in late
                if wanted and lent.produced.ready.done() and part.moved.done():
                    self._gather(lent, part)
                else:
                    late.add(name)
                    left.append(lent)
        moved, self.lent = len(left) < len(self.lent), left
        return moved

    def look(self) -> None:
        """Consumers gather the arrived payloads and keep their leases, as those do that gather in parts."""
        with torch.inference_mode():
            for lent in self.lent:
                (part,) = lent.produced.payload.tensors.values()
                assert isinstance(part, PageSlice)
                if lent.produced.ready.done() and part.moved.done():
                    lent.looks.append(self._launch_gather(part))
                    part.gathered(self.device.record(self.consumer_stream))

    def _gather(self, lent: ReceivedPayload, part: PageSlice) -> None:
        meta = lent.produced.payload.meta
        assert isinstance(meta, PromptHidden | TokenHidden | TokenCodes)
        out = self._launch_gather(part)
        self.rows.setdefault(lent.produced.request_id, []).append((meta, out))
        self.looks += [(look, out) for look in lent.looks]
        end = self.device.record(self.consumer_stream)
        part.gathered(end)
        lent.pending.release(end)

    def _launch_gather(self, part: PageSlice) -> Tensor:
        place = part.pages.device
        out = torch.empty(len(part.slots), part.pages.shape[-1], dtype=part.pages.dtype, device=place)
        slots_n = torch.from_numpy(part.slots.copy()).to(place)
        self._slots.append(slots_n)
        self.device.launch(self.consumer_stream, take_rows, part.pages, slots_n, out)
        return out

    def gather_all(self) -> None:
        """Until the stage is idle and no payload is lent."""
        self.run()
        while self.gather():
            self.run()
        assert not self.lent, "payloads that never arrive"

    def finish(self, requests: int) -> None:
        """On a device that is never late: until these many requests have ended and consumers have gathered all payloads."""
        for _ in range(100_000):
            self.tick()
            self.gather()
            if len(self.ends) == requests and not self.lent:
                self.device.synchronize()
                return
        raise AssertionError(f"no end: {self.worker.usage()}")

    def release_lent(self) -> None:
        """Consumers release payloads without a gather."""
        while self.lent:
            self.lent.pop().pending.release(COMPLETED)

    def tokens(self, request_id: str) -> list[int]:
        return [i for meta in self.metas(request_id) if isinstance(meta, GeneratedTokens) for i in meta.ids]

    def all_tokens(self, requests: int) -> list[list[int]]:
        """Tokens of the requests that are named by these indexes."""
        return [self.tokens(str(index)) for index in range(requests)]

    def metas(self, request_id: str) -> list[object]:
        return [produced.payload.meta for produced in self.produced.get(request_id, [])]

    def logprobs(self, request_id: str) -> list[LogprobsChunk]:
        return [meta for meta in self.metas(request_id) if isinstance(meta, LogprobsChunk)]

    def frames(self, request_id: str) -> list[list[int]]:
        """Gathered code frames."""
        return [
            frame
            for meta, codes in self.rows.get(request_id, [])
            if isinstance(meta, TokenCodes)
            for frame in codes.tolist()
        ]

    def hidden(self, request_id: str) -> list[Tensor]:
        """Gathered hidden states."""
        return [rows for meta, rows in self.rows.get(request_id, []) if isinstance(meta, PromptHidden)]

    def counter(self, name: str) -> int:
        return self.worker.counters()[name]

    def done(self, request_id: str) -> Done:
        end = self.ends[request_id]
        assert isinstance(end, Done), end
        return end

    def error(self, request_id: str) -> OmniError:
        end = self.ends[request_id]
        assert isinstance(end, Failed), end
        return end.error


class ArDriver(ArWorkerDriver):
    """Runs a model."""

    def __init__(
        self,
        model: ArModel,
        device: Device | None = None,
        options: ArOptions | None = None,
        source: SourceFactory | None = None,
        captured: bool = False,
        backend: AttentionBackend | None = None,
        dtype: torch.dtype = torch.float32,
        processors: ProcessorRegistry | None = None,
        ranks: Ranks | None = None,
        drafter: Drafter | None = None,
        listeners: Listeners | None = None,
    ) -> None:
        """captured: whether steps are, in `graph_batch_sizes` and `graph_chunk_sizes`. backend: None takes that of plain torch.
        drafter: None takes that of the options."""
        device = device or CpuDevice()
        options = options or ArOptions(max_num_seqs=4, block_size=4)
        with torch.inference_mode():
            drafter = drafter or small_drafter(model, options)
            runner, limits, blocks = small_runner(
                model, device, options, source, captured, backend, dtype, processors, ranks, drafter, listeners
            )
            worker = ArWorker(
                "text",
                runner,
                shape=model.shape,
                limits=limits,
                options=options,
                num_blocks=blocks,
                processors=processors,
                listeners=listeners,
                watch=StepWatch(ranks, device.seconds) if ranks is not None else None,
                drafter=drafter,
            )
        self.runner = runner
        # As an engine does: buffers are zeroed on a stream that no stage's stream waits for.
        device.synchronize()
        super().__init__(worker, device, runner.stream)


def take_rows(pages: Tensor, slots_n: Tensor, out_nD: Tensor) -> None:
    torch.index_select(pages.flatten(0, 1), 0, slots_n, out=out_nD)


def small_drafter(model: ArModel, options: ArOptions) -> Drafter | None:
    """The drafter that the options name."""
    context = small_context(options, {entry.name: entry for entry in (*omni_drafters(), DEEP)})
    return load_drafter(context, model, options.max_model_len or model.shape.max_positions)


def small_context(options: ArOptions, drafters: Mapping[str, DrafterEntry]) -> StageContext:
    """Of a stage "text" with an empty checkpoint, on the CPU."""
    return StageContext(
        stage=Stage(name="text", kind="ar", options=options),
        options=options,
        checkpoint=_empty_checkpoint(),
        device=CpuDevice(),
        dtype=torch.float32,
        load_format="auto",
        drafters=drafters,
    )


@cache
def _empty_checkpoint() -> Checkpoint:
    folder = Path(mkdtemp(prefix="omni-test-"))
    atexit.register(rmtree, folder)
    (folder / "config.json").write_text("{}")
    return Checkpoint(folder)


def small_runner(
    model: ArModel,
    device: Device,
    options: ArOptions,
    source: SourceFactory | None = None,
    captured: bool = False,
    backend: AttentionBackend | None = None,
    dtype: torch.dtype = torch.float32,
    processors: ProcessorRegistry | None = None,
    ranks: Ranks | None = None,
    drafter: Drafter | None = None,
    listeners: Listeners | None = None,
) -> tuple[Runner, Limits, int]:
    """A runner with its pages and captures, its limits, and its number of blocks. Arguments as for `ArDriver`."""
    on_device = processors.on_device if processors is not None else ()
    micro_batches = ranks.pipeline.size if ranks is not None and ranks.pipeline is not None else 1
    limits = Limits.of("text", options, model.shape, on_device, micro_batches=micro_batches)
    runner = Runner(
        "ar",
        device,
        model=model,
        backend=backend or TorchPagedAttention(),
        limits=limits,
        dtype=dtype,
        priority=0,
        processors=on_device,
        source=source,
        ranks=ranks,
        drafter=drafter,
        listeners=listeners,
    )
    blocks = options.num_blocks or limits.rows * limits.max_blocks
    runner.allocate(blocks)
    if captured:
        if runner.captures_chunks:
            runner.capture_chunks(captured_lengths(options.graph_chunk_sizes, limits.max_num_batched_tokens))
        runner.capture(captured_sizes(options.graph_batch_sizes, limits.rows))
    if ranks is not None and not ranks.rank:
        runner.lead(ranks.channel)
    return runner, limits, blocks
