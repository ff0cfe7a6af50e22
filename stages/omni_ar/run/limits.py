"""Sizes that a stage fixes at start."""

from dataclasses import dataclass

from omni.errors import ConfigError
from omni_ar.model import ArShape
from omni_ar.options import ArOptions

MAX_STOP_IDS = 16
"""Stop ids that a row has room for."""

MAX_SUPPRESSED_IDS = 4096
"""Suppressed ids that a request may name."""

MAX_STARTS = 8
"""Rows that one step sets up: what a start uploads is bounded by it."""

_DEFAULT_MODEL_LEN = 8192


@dataclass(frozen=True, slots=True)
class Limits:
    """rows: requests at once. max_blocks: blocks of one request at most. max_num_batched_tokens: token budget of a step.

    step_tokens: tokens of one step at most. upload_words: int64 words that one step's packed inputs take at most.
    """

    rows: int
    max_model_len: int
    block_size: int
    max_blocks: int
    max_num_batched_tokens: int
    step_tokens: int
    upload_words: int

    @classmethod
    def of(cls, stage: str, options: ArOptions, shape: ArShape) -> "Limits":
        """Raises ConfigError for a length that the model was not made for."""
        length = options.max_model_len or min(shape.max_positions, _DEFAULT_MODEL_LEN)
        if length > shape.max_positions:
            problem = f"{length} is longer than the model's {shape.max_positions} positions"
            raise ConfigError(f"{stage}.max_model_len", problem, "lower it")
        rows, size, budget = options.max_num_seqs, options.block_size, options.max_num_batched_tokens
        max_blocks = -(-length // size)
        # Per token of a chunk: columns or step columns, positions, id, slot, segment index, payload index and slot.
        per_token = len(shape.prompt_columns) + len(shape.step_columns) + shape.position_axes + 5
        # Per row that decodes: row, last, advance, step columns, a block's place and number.
        per_row = 5 + len(shape.step_columns)
        # Per row that starts: settings, stop ids, blocks, and pairs of row and id, suppressed or penalised.
        per_start = 16 + MAX_STOP_IDS + max_blocks + 2 * (MAX_SUPPRESSED_IDS + 2 * length)
        words = per_token * budget + per_row * (rows + MAX_STARTS) + per_start * min(rows, MAX_STARTS)
        return cls(rows, length, size, max_blocks, budget, rows + budget, words)
