"""Settings of an autoregressive stage. Torch-free, so that pipelines can be built and explained without it."""

from collections.abc import Mapping
from typing import Literal

import msgspec

from omni.device.graphs import check_sizes
from omni.errors import InputError
from omni.sampling import GREEDY, SamplingParams

_MOST = 2**24

AttentionName = Literal["auto", "torch", "triton", "flash_attention", "flashinfer"]

MEASURED: Literal["measured"] = "measured"
MAX_IN_FLIGHT = 8
"""Maximum number of steps in flight."""
DRAFTS = 3
"""Number of drafts of a row in one step, at most, where `draft_tokens` gives none."""
MAX_DRAFTS = 15
"""Maximum number of drafts of a row in one step."""


class ArOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of stage kind `"ar"`.

    max_num_seqs: maximum number of requests that run at once; None derives it from memory, at most 128.
    max_model_len: maximum tokens of a request, prompt and output together; None takes the model's maximum, up to 8,192. A model
    with conditioned decode steps allocates that many vectors for each of `max_num_seqs`. block_size: tokens per KV block.
    num_blocks: KV blocks of the stage; None divides the device's memory among the stages, or, where memory is
        unbounded, allocates blocks for `max_num_seqs` requests of full length, or for 16 if that is None.
    max_num_batched_tokens: token budget of one step: one token per decoding row; the rest, at least one token, is for prefill
    chunks. max_in_flight: number of steps launched before the tokens of the first of them are read; 1 waits for each step's
    tokens. graph_batch_sizes: numbers of rows whose decode steps are captured, where graphs are on (`engine.graphs`).
    A smaller batch is padded to the next size, a larger one runs uncaptured. None takes sizes up to `max_num_seqs`.
    graph_chunk_sizes: numbers of tokens in prefill chunks for which a step's forward is captured, where graphs are on.
    A smaller step is padded to the next size, a larger one runs uncaptured. None takes sizes up to `max_num_batched_tokens`.
    attention_backend: `"auto"`, or `"torch"`, `"triton"`, `"flash_attention"` or `"flashinfer"`, the last two where installed.
    short_slack_prefill_tokens: maximum tokens of prefill chunks in one step while the slack of a listener is short
    (`engine.short_slack`).
    stream_interval: number of generated tokens of a request, with their frames, that are passed on together, to users and other
    stages, after as many that are passed on one by one. More reduce the host's work. None takes 1, or 5 for a codec model. Without
    effect for a request with stop strings or log-probabilities, or whose hidden states go to another stage token by token.
    prefix_cache: whether computed blocks are kept for prompts with the same prefix.
    check_logits: whether each step checks on the device that its logits are numbers; a request with others fails. It takes one more
        pass over the logits. Without it, NaN is found where log-probabilities are requested, or no id is left.
    hidden_layers: layers whose hidden states are kept for users and other stages (`omni.payload.RequestHiddenStates`), of every
    position. A token takes memory for as many more numbers as they are wide. 0 is the input embeddings, k the output of layer k,
    and the number of layers the final, normalized states.
    pipeline_layers: number of layers of each layer range (`pipeline_parallel`), in the order of the layers, so that the last number
    is that of rank 0; empty for equal numbers, `"measured"` for those with which the slowest range takes the least time, measured
    at start. None for `"measured"` on a CUDA device, and equal numbers elsewhere.
    drafter: name of the drafter, which guesses tokens that a step verifies together (docs/speculative.md); None for none.
    draft_tokens: maximum number of drafts of a row in one step; they do not count in `max_num_batched_tokens`; None for 3.
    drafter_args: arguments of the drafter; None for none. adaptive_drafts: whether drafts are verified only where
    recent ones of the rows make it worth the time; None for true. All three are refused without a drafter.
    sampling: defaults for parameters that a request does not set.
    """

    max_num_seqs: int | None = None
    max_model_len: int | None = None
    block_size: int = 16
    num_blocks: int | None = None
    max_num_batched_tokens: int = 2048
    short_slack_prefill_tokens: int = 512
    max_in_flight: int = 2
    stream_interval: int | None = None
    graph_batch_sizes: tuple[int, ...] | None = None
    graph_chunk_sizes: tuple[int, ...] | None = None
    attention_backend: AttentionName = "auto"
    prefix_cache: bool = True
    check_logits: bool = False
    hidden_layers: tuple[int, ...] = ()
    pipeline_layers: tuple[int, ...] | Literal["measured"] | None = None
    drafter: str | None = None
    draft_tokens: int | None = None
    drafter_args: Mapping[str, object] | None = None
    adaptive_drafts: bool | None = None
    sampling: SamplingParams = GREEDY

    def __post_init__(self) -> None:
        for name in (
            "max_num_seqs",
            "block_size",
            "max_num_batched_tokens",
            "short_slack_prefill_tokens",
            "num_blocks",
            "stream_interval",
        ):
            value = msgspec.structs.asdict(self)[name]
            if value is not None and not 1 <= value <= _MOST:
                raise ValueError(f"{name} must be at least 1, at most {_MOST:,}")
        if not 1 <= self.max_in_flight <= MAX_IN_FLIGHT:
            raise ValueError(f"max_in_flight must be at least 1, at most {MAX_IN_FLIGHT}")
        if self.draft_tokens is not None and not 1 <= self.draft_tokens <= MAX_DRAFTS:
            raise ValueError(f"draft_tokens must be at least 1, at most {MAX_DRAFTS}")
        check_sizes(self.graph_batch_sizes, self.max_num_seqs)
        check_sizes(self.graph_chunk_sizes, self.max_num_batched_tokens, "graph_chunk_sizes", "max_num_batched_tokens")
        if self.max_model_len is not None and self.max_model_len < 2:
            raise ValueError("max_model_len must be at least 2")
        try:
            self.sampling.check("sampling")
        except InputError as error:
            raise ValueError(str(error)) from error

    @property
    def drafts(self) -> int:
        """Maximum number of drafts of a row in one step; 0 without a drafter."""
        if self.drafter is None:
            return 0
        return self.draft_tokens if self.draft_tokens is not None else DRAFTS
