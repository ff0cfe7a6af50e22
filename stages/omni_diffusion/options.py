"""Settings of a diffusion stage. Torch-free, so that pipelines can be built and explained without it."""

import math

import msgspec

from omni.graphs import check_sizes
from omni.sampling import SamplingParams

_MOST = 2**12


class DiffusionOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of stage kind `"diffusion"`.

    max_num_seqs: requests that speak at once.
    first_chunk_blocks: blocks of a request's first chunk: fewer are heard sooner.
    chunk_blocks: blocks of every later chunk: more cost less per block.
    blocks_before: blocks in front of a chunk that are denoised anew along with it, as context. With 0, a model that can carry state
        from window to window does so. With any other number it has these blocks instead, and forgets all before them.
    blocks_after: blocks behind a chunk that are denoised along with it, as look-ahead: more are nearer to the whole, and later.
    num_steps: steps of the solver. None takes the model's.
    guidance: strength of classifier-free guidance, 0 for none. None takes the model's.
    tf32: whether products of float32 may be rounded to TF32 on a GPU, as torch has it for convolutions alone. False multiplies in
        float32, which takes several times as long.
    graph_batch_sizes: numbers of rows whose steps are captured at start, where graphs are on (`engine.graphs`). A batch of fewer
        rows is padded to the next, one of more runs uncaptured. None takes sizes up to `max_num_seqs`.
    sampling: the default of what a request leaves open. Of its parameters a stage of this kind knows `seed`.
    """

    max_num_seqs: int = 16
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
            raise ValueError(f"sampling.{unknown} means nothing here: a diffusion stage knows seed alone")


def beside_seed(sampling: SamplingParams) -> str | None:
    """A parameter that is given and is not the seed, if there is one."""
    given = (name for name, value in msgspec.structs.asdict(sampling).items() if value is not None)
    return next((name for name in given if name != "seed"), None)
