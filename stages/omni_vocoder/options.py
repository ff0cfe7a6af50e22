"""Settings of a vocoder stage. Torch-free, so that pipelines can be built and explained without it."""

import msgspec

_MOST = 2**16


class VocoderOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of stage kind `"vocoder"`.

    max_num_seqs: requests that speak at once.
    first_chunk_frames: codec frames of a request's first chunk: fewer are heard sooner.
    chunk_frames: codec frames of every later chunk: more cost less per frame.
    """

    max_num_seqs: int = 16
    first_chunk_frames: int = 10
    chunk_frames: int = 25

    def __post_init__(self) -> None:
        for name, value in msgspec.structs.asdict(self).items():
            if not 1 <= value <= _MOST:
                raise ValueError(f"{name} must be at least 1, at most {_MOST:,}")
