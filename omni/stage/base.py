"""How a kind of stage runs."""

import zlib
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
import torch

from omni.checkpoint import Checkpoint
from omni.device import Device
from omni.pipeline.stage import Stage
from omni.plugin import LogitsProcessorEntry
from omni.sampling import SamplingParams
from omni.stage.footprint import Footprint
from omni.stage.messages import Inbound, Outbound

StageUsage = Mapping[str, int]
"""What a worker holds right now, by name (`requests`, `rows`, `blocks`, ...). All zero when it is idle."""


@dataclass(frozen=True, slots=True)
class StageContext:
    """What a stage is built from.

    options: the stage's options after overrides, an instance of its kind's options struct.
    load_format: `"auto"` reads the checkpoint; `"dummy"` fills weights with random numbers on the device.
    graphs: whether the stage captures its steps at start.
    logits_processors: by name, those that plugins bring; a kind that samples lets requests ask for them.
    """

    stage: Stage
    options: msgspec.Struct
    checkpoint: Checkpoint
    device: Device
    dtype: torch.dtype
    load_format: str
    logits_processors: Mapping[str, LogitsProcessorEntry] = field(default_factory=dict)
    graphs: bool = False

    @property
    def dummy_seed(self) -> int:
        """Of random weights: the same for a stage of the same name."""
        return zlib.crc32(self.stage.name.encode())


class StageWorker(Protocol):
    """Owns scheduling, memory and steps of one stage. Driven by the engine loop; nothing in it blocks."""

    inbox: deque[Inbound]
    outbox: deque[Outbound]

    @property
    def longest_prompt(self) -> int | None:
        """Tokens that a prompt may have here; None where that is not what an input is counted in."""
        ...

    def tick(self) -> bool:
        """Takes the inbox, polls events, enqueues the work that is possible now. Returns whether anything happened.

        What goes wrong for one request comes out as `Failed`; an exception out of `tick` ends the engine.
        """
        ...

    def check(self, sampling: SamplingParams, field: str) -> None:
        """Raises InputError, naming the parameter below `field`, for what the stage could never do. Called from any thread."""
        ...

    def usage(self) -> StageUsage: ...

    def counters(self) -> Mapping[str, int]:
        """Totals since the start, by name (`frames`, `steps`, ...). They only grow. `retries` counts failed batches whose parts ran
        again (`MailboxWorker.retry_each`)."""
        ...

    def close(self) -> None:
        """Frees everything. Idempotent."""
        ...


class LoadedStage(Protocol):
    """A stage whose weights are on the device, and which does not know yet how many pages it will have."""

    @property
    def footprint(self) -> Footprint: ...

    def measure(self) -> int:
        """Runs the largest steps that the stage's options allow, once each; returns the most working memory they took at once,
        in bytes, beyond the footprint. Waits for the device. Leaves no trace. Not on the meta device."""
        ...

    def start(self, pages: int) -> StageWorker:
        """Allocates the pages. Called once, last."""
        ...


class StageKind(Protocol):
    """A way of running stages, registered by `omni_stage_kinds`."""

    @property
    def name(self) -> str: ...

    @property
    def options(self) -> type[msgspec.Struct]:
        """The frozen struct of settings that a stage of this kind has; what `--set stage.option=value` can reach.

        A kind that samples has a field `sampling: SamplingParams` in it, the defaults of what a request leaves open.
        """
        ...

    def load(self, context: StageContext) -> LoadedStage:
        """Loads the model onto the device. On the meta device (`omni.device.meta`) only the footprint is asked for.

        Raises ConfigError or CheckpointError.
        """
        ...
