"""The contract of stage kinds."""

import zlib
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import msgspec
import torch
from torch import nn

from omni.checkpoint import Checkpoint
from omni.device import Device
from omni.parallel import Ranks
from omni.pipeline.stage import Stage
from omni.plugin import DrafterEntry, LogitsProcessorEntry
from omni.sampling import SamplingParams
from omni.stage.listeners import Listeners
from omni.stage.messages import Inbound, Outbound

StageUsage = Mapping[str, int]
"""Resources that a worker holds now, by name (`requests`, `rows`, `blocks`, ...). All zero when it is idle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Bytes of device memory, and the range of pages (KV blocks, or another unit of which a kind holds as many as fit).

    weights: parameters and buffers. fixed: other allocations, independent of the number of pages.
    page_bytes: of one page; 0 for a kind without pages. fewest_pages: the minimum for a request of full length.
    most_pages: the maximum that requests can use; at least `fewest_pages`. chosen_pages: the user's number, or None.
    rows: number of requests that run at once, of which `fixed` has the buffers; None for a kind without rows.
    caches: whether pages that no request uses hold a prefix cache. Such a stage gets more pages where memory is left.
    """

    weights: int = 0
    fixed: int = 0
    page_bytes: int = 0
    fewest_pages: int = 0
    most_pages: int = 0
    chosen_pages: int | None = None
    rows: int | None = None
    caches: bool = False


def module_bytes(module: nn.Module) -> int:
    """Bytes of a module's parameters and buffers, tied ones counted once."""
    tensors = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    return sum(tensor.nbytes for tensor in tensors.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class StageContext:
    """The inputs for building a stage.

    options: the stage's options after overrides, an instance of its kind's options struct.
    load_format: `"auto"` reads the checkpoint; `"dummy"` fills weights with random numbers on the device.
    graphs: whether the stage captures its steps at start.
    logits_processors: those of plugins, by name; requests of a kind that samples can select them.
    drafters: those of plugins, by name; a stage of a kind that verifies drafts can select one.
    listeners: those of the engine's requests, whose slack a stage may schedule by; None if it schedules without them.
    ranks: this engine's rank of a stage that is cut across engines, and its communicators; None for a whole stage.
    """

    stage: Stage
    options: msgspec.Struct
    checkpoint: Checkpoint
    device: Device
    dtype: torch.dtype
    load_format: str
    logits_processors: Mapping[str, LogitsProcessorEntry] = field(default_factory=dict)
    drafters: Mapping[str, DrafterEntry] = field(default_factory=dict)
    graphs: bool = False
    listeners: Listeners | None = None
    ranks: Ranks | None = None

    @property
    def dummy_seed(self) -> int:
        """The seed of random weights, derived from the stage's name."""
        return zlib.crc32(self.stage.name.encode())


@runtime_checkable
class StageWorker(Protocol):
    """Owns scheduling, memory and steps of one stage. The engine loop drives it; no call blocks."""

    inbox: deque[Inbound]
    outbox: deque[Outbound]

    @property
    def longest_prompt(self) -> int | None:
        """The maximum prompt length in tokens; None if inputs are not counted in tokens."""

    def tick(self) -> bool:
        """Empties the inbox, polls events, enqueues the work that is possible now. Returns whether anything happened.

        Errors of one request become `Failed`. After an exception from `tick` the stage's state is unknown: the engine
        closes it, and fails the requests that are there.
        """

    def poll(self) -> bool:
        """The first part of `tick`: reads results and copies inputs, but launches no step. The engine calls it before
        every tick of any stage, so that no payload waits while another step is launched. A stage that does not override it does
        everything in `tick`. Returns whether anything happened; an exception is one of `tick`."""
        return False

    def check(self, sampling: SamplingParams, field: str) -> None:
        """Raises InputError, naming the parameter below `field`, if the stage cannot apply it. Thread-safe."""

    def usage(self) -> StageUsage: ...

    def counters(self) -> Mapping[str, int]:
        """Totals since the start, by name (`frames`, `steps`, ...). They only grow. `retries` counts failed batches
        whose parts ran again (`MailboxWorker.retry_each`)."""

    def close(self) -> None:
        """Frees all resources. Idempotent."""


@runtime_checkable
class LoadedStage(Protocol):
    """A stage with its weights on the device, before its number of pages is decided."""

    @property
    def footprint(self) -> Footprint: ...

    def measure(self) -> int:
        """Runs the largest steps that the stage's options allow, once each. Returns their peak of working memory in
        bytes, beyond the footprint. Waits for the device. Leaves no state behind. Not on the meta device."""

    def start(self, pages: int) -> StageWorker:
        """Allocates the pages and returns the worker. Called once, last."""


@runtime_checkable
class WarmStage(LoadedStage, Protocol):
    """A loaded stage whose phases launch Triton kernels, which can be compiled before there are weights."""

    def warm_up(self) -> None:
        """Makes the launches of `measure` and `start`, on a device that records the kernels instead of running them
        (`omni.kernels.RecordingDevice`): tensors have no contents, and results have no meaning. It is the only and last call. An
        error costs time at start only: kernels that are not recorded are compiled at their first launch."""


@runtime_checkable
class StageKind(Protocol):
    """A way of running stages, registered by `omni_stage_kinds`."""

    @property
    def name(self) -> str: ...

    @property
    def options(self) -> type[msgspec.Struct]:
        """The frozen options struct of this kind's stages, which `--set stage.option=value` changes.

        A kind that samples has a field `sampling: SamplingParams`, the defaults of parameters that a request leaves
        open.
        """

    def load(self, context: StageContext) -> LoadedStage:
        """Loads the model onto the device. On the meta device (`omni.device.meta`) only its footprint is used.

        Raises ConfigError or CheckpointError.
        """


@runtime_checkable
class TensorParallelKind(StageKind, Protocol):
    """A kind whose stages can be cut across engines (`Stage.tensor_parallel`).

    tensor_parallel: whether they can; `load` then gets `StageContext.ranks`, in an engine of each rank. Stages of other kinds have
    replicas instead. The orchestrator gives requests to the worker of rank 0 only. The workers of the other ranks take its
    messages (`Ranks.channel`) in `tick`, which the engine calls when one has arrived; their `usage` and `counters` are not added to
    those of rank 0. An exception out of `tick` ends the engine, since the ranks are out of step then, and all ranks are started
    again.
    """

    tensor_parallel: bool


@runtime_checkable
class ExpertParallelKind(TensorParallelKind, Protocol):
    """A kind that can divide the experts of a mixture among the ranks of a stage (`Stage.expert_parallel`).

    expert_parallel: whether it can. `load` then follows `StageContext.stage.expert_parallel`, and raises ConfigError for a model
    without experts, on the meta device too.
    """

    expert_parallel: bool


@runtime_checkable
class PipelineParallelKind(StageKind, Protocol):
    """As `TensorParallelKind`, with `Stage.pipeline_parallel`: rank 0 has the last layer range, and so the results of the stage."""

    pipeline_parallel: bool
