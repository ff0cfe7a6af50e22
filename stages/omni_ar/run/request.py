"""What the host knows of one request at one stage."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from omni.device import Event
from omni.errors import InputError
from omni.sampling_params import SamplingParams
from omni.stage import Hold, Lease
from omni_ar.inputs import Prompt, StepInputs
from omni_ar.run.blocks import Row


@dataclass(slots=True)
class ReadySegment:
    """A segment's tensors, usable once `ready` is done. lease: of tensors that still belong to their producer."""

    tensors: dict[str, Tensor]
    ready: Event
    lease: Lease | None


@dataclass(slots=True, eq=False)
class ArRequest:
    """A request from `Open` to its end. `generated` counts confirmed tokens; the device alone knows more."""

    id: str
    sampling: SamplingParams
    open_sources: set[str]
    prompt: Prompt | None = None
    segments: dict[tuple[str, int], ReadySegment] = field(default_factory=dict)
    step_columns: list[NDArray[np.int64]] = field(default_factory=list)
    step_pad: NDArray[np.int64] | None = None
    queued: bool = False
    """Whether the scheduler has it, or had it."""
    max_tokens: int = 0
    row: Row | None = None
    blocks: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    holds: list[Hold] = field(default_factory=list)
    scheduled: int = 0
    """Tokens whose step has been launched."""
    generated: int = 0
    frames: int = 0
    last_step: Event | None = None
    """End of the last step that touches this request's row and blocks."""

    @property
    def wants_hidden(self) -> bool:
        """Whether a consumer needs hidden states of the prompt."""
        return self.prompt is not None and self.prompt.payload_positions.size > 0

    @property
    def prompt_ready(self) -> bool:
        """The prompt is here, and so is every segment it waits for."""
        if self.prompt is None:
            return False
        ready = (self.segments.get((slot.name, slot.index)) for slot in self.prompt.segments)
        return all(segment is not None and segment.ready.done() for segment in ready)

    def check_segments(self) -> None:
        """Raises InputError for a segment with another number of rows than its slot has positions."""
        assert self.prompt is not None
        for slot in self.prompt.segments:
            for name, tensor in self.segments[slot.name, slot.index].tensors.items():
                if tensor.shape[-2] != slot.positions.size:
                    problem = f"tensor {name!r} has {tensor.shape[-2]} rows for {slot.positions.size} prompt positions"
                    raise InputError(f"segment.{slot.name}[{slot.index}]", problem, "give one row for each position")

    def can_step(self, conditioned: bool) -> bool:
        """Whether a decode step could run now: below the limit, and conditioned if the model wants that."""
        if self.scheduled >= self.max_tokens:
            return False
        return not conditioned or self.step_pad is not None or self.scheduled - 1 < len(self.step_columns)

    def step_column(self) -> NDArray[np.int64]:
        """Conditioning of the next decode step `[S]`. Only after `can_step`."""
        index = self.scheduled - 1
        if index < len(self.step_columns):
            return self.step_columns[index]
        assert self.step_pad is not None
        return self.step_pad

    def add_steps(self, inputs: StepInputs) -> None:
        self.step_columns.extend(np.ascontiguousarray(inputs.columns.T))
        if inputs.pad is not None:
            self.step_pad = inputs.pad

    @property
    def computed(self) -> int:
        """Upper bound of tokens in the KV cache, counting launched steps: the newest token is not in it yet."""
        assert self.prompt is not None
        return self.prompt.length + max(self.scheduled - 1, 0)
