"""Sizes that a stage fixes at start."""

from dataclasses import dataclass

from omni.errors import ConfigError
from omni_ar.model import ArShape
from omni_ar.options import ArOptions

MAX_STOP_IDS = 16
"""Stop ids that a row has room for."""

MAX_SUPPRESSED_IDS = 4096
"""Suppressed ids that a request may name."""

_DEFAULT_MODEL_LEN = 8192


@dataclass(frozen=True, slots=True)
class Limits:
    """rows: requests at once. max_blocks: blocks of one request at most. num_blocks: of the stage, the null block not counted.

    step_tokens: tokens of one step at most. upload_words: int64 words that one step's packed inputs take at most.
    """

    rows: int
    max_model_len: int
    block_size: int
    max_blocks: int
    num_blocks: int
    step_tokens: int
    upload_words: int

    @classmethod
    def of(cls, stage: str, options: ArOptions, shape: ArShape) -> "Limits":
        """Raises ConfigError for a length that the model was not made for."""
        length = options.max_model_len or min(shape.max_positions, _DEFAULT_MODEL_LEN)
        if length > shape.max_positions:
            problem = f"{length} is longer than the model's {shape.max_positions} positions"
            raise ConfigError(f"{stage}.max_model_len", problem, "lower it")
        rows, size = options.max_num_seqs, options.block_size
        max_blocks = -(-length // size)
        prompt_tokens = max(options.max_num_batched_tokens, length)
        # Per prompt token: columns, positions, slot, segment index, payload index and slot, one penalised id and its row.
        per_token = len(shape.prompt_columns) + shape.position_axes + 6
        per_row = 16 + MAX_STOP_IDS + max_blocks + len(shape.step_columns)
        words = per_token * prompt_tokens + rows * (per_row + 2 * MAX_SUPPRESSED_IDS)
        num_blocks = options.num_blocks or rows * max_blocks
        return cls(rows, length, size, max_blocks, num_blocks, rows + prompt_tokens, words)
