"""Sizes of a stage, fixed at its start."""

from collections.abc import Sequence
from dataclasses import dataclass

from omni.errors import ConfigError
from omni.stage import rows_or_default
from omni_ar.kernels.step.draft_state import DRAFT_FIELDS
from omni_ar.model import ArShape
from omni_ar.options import ArOptions
from omni_ar.processors import NamedProcessor
from omni_ar.sampling.edits import edit_size
from omni_ar.sampling.pack import start_size

MAX_STARTS = 8
"""Maximum rows that one step sets up; bounds the upload."""

MAX_CAPTURED_CHUNKS = 2 * MAX_STARTS
"""Maximum chunks of a captured step: `MAX_STARTS` that start, and as many that continue."""

MAX_SCORED = 256
"""Maximum prompt tokens that one step scores. Each needs logits of the whole vocabulary, and all rows wait for them."""

_DEFAULT_MODEL_LEN = 8192


@dataclass(frozen=True, slots=True)
class Limits:
    """rows: requests that run at once. max_blocks: of one request. max_num_batched_tokens: token budget of a step. step_tokens:
    maximum tokens of one step, drafts included. scored_tokens: maximum prompt tokens among them that are scored; 0 for a model
    whose prompt is not a sequence of its own tokens. upload_size: maximum number of int64 in one step's packed inputs. step_ids:
    maximum tokens that one step gives a row. max_step_vectors: conditioning vectors per request, one for each possible step; 0 for
    a model without them. micro_batches: number of batches that the decoding rows are divided into, one for each layer range.
    check_logits, hidden_layers, short_slack_prefill_tokens, adaptive_drafts: as in `ArOptions`.
    """

    rows: int
    max_model_len: int
    block_size: int
    max_blocks: int
    max_num_batched_tokens: int
    max_in_flight: int
    step_tokens: int
    scored_tokens: int
    upload_size: int
    step_ids: int = 1
    max_step_vectors: int = 0
    check_logits: bool = False
    hidden_layers: tuple[int, ...] = ()
    short_slack_prefill_tokens: int = 512
    micro_batches: int = 1
    adaptive_drafts: bool = True

    @property
    def null_row(self) -> int:
        """The row that pads a batch: inactive and without blocks. A batch may contain it several times."""
        return self.rows

    @property
    def null_vector(self) -> int:
        """Index of the zeros, for steps without a vector, after the vectors of all rows."""
        return self.rows * self.max_step_vectors

    @property
    def drafts(self) -> int:
        """Maximum drafts that one step verifies for a row; 0 without a drafter."""
        return self.step_ids - 1

    @property
    def drafts_late(self) -> bool:
        """Whether drafts are made at the end of the step before the one that verifies them (`LateDrafts`), instead of at its head:
        where there are several layer ranges."""
        return self.micro_batches > 1

    @property
    def step_sizes(self) -> tuple[int, ...]:
        """Numbers of positions of a row in decode steps: with drafts, and without."""
        return (self.step_ids, 1) if self.drafts else (1,)

    @property
    def decode_tokens(self) -> int:
        """Maximum positions of a decode step."""
        return self.rows * self.step_ids

    @property
    def captured_chunks(self) -> int:
        return min(self.rows, MAX_CAPTURED_CHUNKS)

    @property
    def ring(self) -> int:
        # One more than the steps in flight, for the step that is being launched.
        return self.max_in_flight + 1

    @classmethod
    def of(
        cls,
        stage: str,
        options: ArOptions,
        shape: ArShape,
        processors: Sequence[NamedProcessor] = (),
        rows: int | None = None,
        micro_batches: int = 1,
    ) -> "Limits":
        """rows: by default the number of the options, or the maximum on the CPU.

        Raises ConfigError for a length beyond the model's positions, and for layers that it does not have."""
        _check_layers(stage, options.hidden_layers, shape.num_layers)
        length = options.max_model_len or min(shape.max_positions, _DEFAULT_MODEL_LEN)
        if length > shape.max_positions:
            problem = f"{length} is longer than the model's {shape.max_positions} positions"
            raise ConfigError(f"{stage}.max_model_len", problem, "lower it")
        rows = rows_or_default(options.max_num_seqs) if rows is None else rows
        size, budget = options.block_size, options.max_num_batched_tokens
        max_blocks = -(-length // size)
        # Per token of a chunk or of padding: columns or step columns, positions, id, slot, embedding's index, payload
        # slot; and, for scoring, its index and the id after it.
        per_token = len(shape.prompt_columns) + step_fields(shape) + shape.position_axes + 6
        # Per row: row, last, advance, row again if it decodes beside chunks, step columns, a block's index in its table and
        # its number. There may be one chunk per row, each with the four fields that attention reads.
        per_row = 10 + step_fields(shape)
        # Per starting row: its row, fields and blocks, and the setup of sampling.
        per_start = 16 + max_blocks + start_size(shape.vocab_size, length, processors)
        starts, step_ids = min(rows, MAX_STARTS), 1
        if options.drafter is not None:
            step_ids += options.drafts
            per_start += 1 + DRAFT_FIELDS + length
            # The blocks that a step may add to a row.
            per_row += 2 * (1 + -(-step_ids // size))
        upload = per_token * budget + per_row * (rows + MAX_STARTS) + per_start * starts
        upload += edit_size(shape.vocab_size, rows)
        scored = min(budget, MAX_SCORED) if len(shape.prompt_columns) == 1 else 0
        return cls(
            rows=rows,
            max_model_len=length,
            block_size=size,
            max_blocks=max_blocks,
            max_num_batched_tokens=budget,
            # While the last layer range runs one batch, those before run the next ones.
            max_in_flight=options.max_in_flight + micro_batches - 1,
            step_tokens=max(rows + budget, rows * step_ids),
            scored_tokens=scored,
            upload_size=upload,
            step_ids=step_ids,
            # The prompt has at least one token, and no step follows the last generated token.
            max_step_vectors=length - 2 if shape.step_width else 0,
            check_logits=options.check_logits,
            hidden_layers=options.hidden_layers,
            short_slack_prefill_tokens=options.short_slack_prefill_tokens,
            micro_batches=micro_batches,
            adaptive_drafts=options.adaptive_drafts is not False,
        )


def _check_layers(stage: str, layers: Sequence[int], last: int) -> None:
    wrong = [layer for layer in layers if not 0 <= layer <= last]
    if wrong or len(set(layers)) < len(layers):
        problem = f"{list(layers)} are not distinct layers of this model"
        raise ConfigError(f"{stage}.hidden_layers", problem, f"use numbers from 0, the input embeddings, to {last}")


def step_fields(shape: ArShape) -> int:
    """Number of int64 fields of one step's conditioning: its columns, then the index of its vector if the model takes vectors."""
    return len(shape.step_columns) + (shape.step_width > 0)
