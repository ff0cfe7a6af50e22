"""Settings of a vocoder stage. Torch-free, so that pipelines can be built and explained without it."""

import msgspec

from omni.device.graphs import check_sizes

_MOST = 2**16


class VocoderOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of stage kind `"vocoder"`.

    max_num_seqs: maximum number of requests that run at once; None derives it from memory, at most 128.
    first_chunk_frames: codec frames of a request's first chunk; fewer reduce the first-audio latency. None is 4 where stages
        schedule by slack, else 10, so that the second chunk comes before the first one is played.
    chunk_frames: codec frames of later chunks at the most; more reduce the cost per frame. Where stages schedule by slack
        (`engine.scheduling`), later chunks begin with `first_chunk_frames` and grow with the sound that lies ahead of the
        listener.
    graph_batch_sizes: numbers of rows whose chunks are captured, where graphs are on (`engine.graphs`). A
        smaller batch is padded to the next size, a larger one runs uncaptured. None takes sizes up to `max_num_seqs`.
    """

    max_num_seqs: int | None = None
    first_chunk_frames: int | None = None
    chunk_frames: int = 25
    graph_batch_sizes: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        check_sizes(self.graph_batch_sizes, self.max_num_seqs)
        for name in ("max_num_seqs", "first_chunk_frames", "chunk_frames"):
            value = msgspec.structs.asdict(self)[name]
            if value is not None and not 1 <= value <= _MOST:
                raise ValueError(f"{name} must be at least 1, at most {_MOST:,}")
