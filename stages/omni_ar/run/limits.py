"""Sizes that are fixed when a stage starts."""

from collections.abc import Sequence
from dataclasses import dataclass

from omni.errors import ConfigError
from omni_ar.model import ArShape
from omni_ar.options import ArOptions
from omni_ar.processors import NamedProcessor
from omni_ar.sampling import edit_size, start_size

MAX_STARTS = 8
"""Rows that one step sets up at most: it bounds the upload."""

MAX_CAPTURED_CHUNKS = 2 * MAX_STARTS
"""Chunks that a captured step has room for: `MAX_STARTS` that start, and as many that go on."""

MAX_SCORED = 256
"""Prompt tokens that one step scores at most. Each takes the logits of the whole vocabulary, and all rows wait for that."""

_DEFAULT_MODEL_LEN = 8192


@dataclass(frozen=True, slots=True)
class Limits:
    """rows: requests that run at once. max_blocks: blocks of one request at most. max_num_batched_tokens: token budget of a step.

    step_tokens: tokens of one step at most. scored_tokens: prompt tokens among them that may be scored; 0 for a model whose prompt
    is not a row of its own tokens. step_ids: tokens that one step may give a row: one, and the drafted ones. upload_words: int64
    words of one step's packed inputs at most. step_places: places for the device rows that condition one request, one for each
    step that it can have; 0 for a model without.
    """

    rows: int
    max_model_len: int
    block_size: int
    max_blocks: int
    max_num_batched_tokens: int
    max_in_flight: int
    step_tokens: int
    scored_tokens: int
    upload_words: int
    step_ids: int = 1
    step_places: int = 0

    @property
    def null_row(self) -> int:
        """The row that pads a batch: it is inactive and has no blocks. It may be in a batch several times."""
        return self.rows

    @property
    def null_place(self) -> int:
        """The place of zeros, for steps without a device row: behind the places of all rows."""
        return self.rows * self.step_places

    @property
    def captured_chunks(self) -> int:
        """Chunks that a captured step has room for."""
        return min(self.rows, MAX_CAPTURED_CHUNKS)

    @property
    def ring(self) -> int:
        """Steps whose handoffs have memory of their own."""
        # One more than may be in flight, for the step that is being launched.
        return self.max_in_flight + 1

    @classmethod
    def of(cls, stage: str, options: ArOptions, shape: ArShape, processors: Sequence[NamedProcessor] = ()) -> "Limits":
        """Raises ConfigError for a length beyond the model's positions."""
        length = options.max_model_len or min(shape.max_positions, _DEFAULT_MODEL_LEN)
        if length > shape.max_positions:
            problem = f"{length} is longer than the model's {shape.max_positions} positions"
            raise ConfigError(f"{stage}.max_model_len", problem, "lower it")
        rows, size, budget = options.max_num_seqs, options.block_size, options.max_num_batched_tokens
        max_blocks = -(-length // size)
        # Per token of a chunk, or of the padding behind them: columns or step columns, positions, id, slot, embedding's index,
        # payload slot; and, to be scored, its index and the id after it.
        per_token = len(shape.prompt_columns) + step_fields(shape) + shape.position_axes + 6
        # Per row: row, last, advance, row again if it decodes beside chunks, step columns, a block's place and number. There may be
        # as many chunks, each with the four fields that attention reads.
        per_row = 10 + step_fields(shape)
        # Per row that starts: its row, fields and blocks, and sampling's setup.
        per_start = 16 + max_blocks + start_size(shape.vocab_size, length, processors)
        starts = min(rows, MAX_STARTS)
        words = per_token * budget + per_row * (rows + MAX_STARTS) + per_start * starts
        words += edit_size(shape.vocab_size, rows)
        scored = min(budget, MAX_SCORED) if len(shape.prompt_columns) == 1 else 0
        return cls(
            rows=rows,
            max_model_len=length,
            block_size=size,
            max_blocks=max_blocks,
            max_num_batched_tokens=budget,
            max_in_flight=options.max_in_flight,
            step_tokens=rows + budget,
            scored_tokens=scored,
            upload_words=words,
            # The prompt has a token, and no step follows the last one generated.
            step_places=length - 2 if shape.step_width else 0,
        )


def step_fields(shape: ArShape) -> int:
    """int64 fields of one step's conditioning: its columns and, behind them, the place of its row if the model takes rows."""
    return len(shape.step_columns) + (shape.step_width > 0)
