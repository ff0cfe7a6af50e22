"""Settings of an autoregressive stage. Torch-free, so that pipelines can be built and explained without it."""

from typing import Literal

import msgspec

from omni.errors import InputError
from omni.graphs import check_sizes
from omni.sampling import GREEDY, SamplingParams

_MOST = 2**24

AttentionName = Literal["auto", "torch", "triton", "flash_attention", "flashinfer"]

MAX_IN_FLIGHT = 8
"""Steps that a stage may have in flight at most."""


class ArOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of stage kind `"ar"`.

    max_num_seqs: requests that run at once.
    max_model_len: tokens a request may have, prompt and output together; None takes what the model allows, 8,192 at most. A model
        whose decode steps another stage's device rows condition keeps memory for as many of them for each of `max_num_seqs`.
    block_size: tokens per KV block.
    num_blocks: KV blocks of the stage; None divides the device's memory among the stages, and where that is not bounded holds
        `max_num_seqs` requests of full length.
    max_num_batched_tokens: tokens of one step: every row that decodes, and chunks of prompts with what is left, at least one.
    max_in_flight: steps that are launched before the tokens of the first of them are read; 1 waits for each step's tokens.
    graph_batch_sizes: numbers of rows whose decode steps are captured at start, where graphs are on (`engine.graphs`); a batch of
        fewer rows is padded to the next, one of more runs uncaptured. None takes sizes up to `max_num_seqs`.
    graph_chunk_sizes: numbers of prompt tokens (tokens of chunks) of the steps whose forward is captured at start, where graphs are
        on; a step with fewer is padded to the next, one with more runs uncaptured. None takes sizes up to `max_num_batched_tokens`.
    attention_backend: `"auto"`, or `"torch"`, `"triton"`, `"flash_attention"` or `"flashinfer"`, the last two where installed.
    prefix_cache: keep the blocks of what has been computed, for prompts that begin alike.
    sampling: defaults for what a request leaves open.
    """

    max_num_seqs: int = 16
    max_model_len: int | None = None
    block_size: int = 16
    num_blocks: int | None = None
    max_num_batched_tokens: int = 2048
    max_in_flight: int = 2
    graph_batch_sizes: tuple[int, ...] | None = None
    graph_chunk_sizes: tuple[int, ...] | None = None
    attention_backend: AttentionName = "auto"
    prefix_cache: bool = True
    sampling: SamplingParams = GREEDY

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "block_size", "max_num_batched_tokens", "num_blocks"):
            value = msgspec.structs.asdict(self)[name]
            if value is not None and not 1 <= value <= _MOST:
                raise ValueError(f"{name} must be at least 1, at most {_MOST:,}")
        if not 1 <= self.max_in_flight <= MAX_IN_FLIGHT:
            raise ValueError(f"max_in_flight must be at least 1, at most {MAX_IN_FLIGHT}")
        check_sizes(self.graph_batch_sizes, self.max_num_seqs)
        check_sizes(self.graph_chunk_sizes, self.max_num_batched_tokens, "graph_chunk_sizes", "max_num_batched_tokens")
        if self.max_model_len is not None and self.max_model_len < 2:
            raise ValueError("max_model_len must be at least 2")
        try:
            self.sampling.check("sampling")
        except InputError as error:
            raise ValueError(str(error)) from error
