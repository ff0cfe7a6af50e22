"""Settings of a diffusion stage. Torch-free, so that pipelines can be built and explained without it."""

import math

import msgspec

from omni.device.graphs import check_sizes
from omni.sampling import SamplingParams

_MOST = 2**12


class DiffusionOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of stage kind `"diffusion"`.

    max_num_seqs: maximum number of requests that run at once; None derives it from memory, at most 128.
    first_chunk_blocks: blocks of a request's first chunk; fewer reduce the first-audio latency.
    chunk_blocks: blocks of every later chunk; more reduce the cost per block.
    blocks_before: blocks in front of a chunk that are denoised again with it, as context. With 0, a model with this ability carries
    state from window to window. With any other number, these blocks replace the state. blocks_after: blocks after a chunk that are
    denoised with it, as look-ahead; more reduce the error and increase the latency. num_steps:
    steps of the solver; None takes the model's default.
    guidance: strength of classifier-free guidance, 0 for none; None takes the model's default.
    tf32: whether products of float32 may be rounded to TF32 on a GPU, which is torch's default for convolutions only.
        False multiplies in float32, which takes several times as long.
    graph_batch_sizes: numbers of rows whose steps are captured, where graphs are on (`engine.graphs`). A
    smaller batch is padded to the next size, a larger one runs uncaptured. None takes sizes up to `max_num_seqs`.
    sampling: defaults for parameters that a request does not set. The only supported parameter is `seed`.
    """

    max_num_seqs: int | None = None
    first_chunk_blocks: int = 1
    chunk_blocks: int = 4
    blocks_before: int = 2
    blocks_after: int = 1
    num_steps: int | None = None
    guidance: float | None = None
    tf32: bool = True
    graph_batch_sizes: tuple[int, ...] | None = None
    sampling: SamplingParams = SamplingParams()

    def __post_init__(self) -> None:
        check_sizes(self.graph_batch_sizes, self.max_num_seqs)
        given = msgspec.structs.asdict(self)
        for name in ("max_num_seqs", "first_chunk_blocks", "chunk_blocks", "num_steps"):
            if given[name] is not None and not 1 <= given[name] <= _MOST:
                raise ValueError(f"{name} must be at least 1, at most {_MOST:,}")
        for name in ("blocks_before", "blocks_after"):
            if not 0 <= given[name] <= _MOST:
                raise ValueError(f"{name} must be at least 0, at most {_MOST:,}")
        if self.guidance is not None and not (math.isfinite(self.guidance) and self.guidance >= 0):
            raise ValueError("guidance must be a finite number of at least 0")
        if (unknown := beside_seed(self.sampling)) is not None:
            raise ValueError(f"sampling.{unknown} has no effect at a diffusion stage: only seed is supported")


def beside_seed(sampling: SamplingParams) -> str | None:
    """Name of a set parameter other than the seed; None if there is none."""
    given = (name for name, value in msgspec.structs.asdict(sampling).items() if value is not None)
    return next((name for name in given if name != "seed"), None)
