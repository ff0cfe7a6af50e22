"""The cutting of clips for the audio tower."""

from collections.abc import Sequence

from omni_encoder.towers.clip_encoder import Chunks


def clip_chunks(half_chunk: int, attended: int | None = None) -> Chunks:
    """half_chunk, attended: half a chunk, and the range of attention, in mel frames, as in the tower's config."""
    run = 1 if attended is None else attended // (2 * half_chunk)
    return Chunks(frames=2 * half_chunk, convolutions=3, run=run)


def encoded_frames(frames: int, half_chunk: int) -> int:
    """Number of audio tokens of a clip of `frames` mel frames."""
    return clip_chunks(half_chunk).embeddings(frames)


def padded_chunk(frames: Sequence[int], half_chunk: int) -> int:
    """Frames that the published processor pads the chunks of a request's clips to: those of the longest clip's first chunk."""
    return min(max(frames), 2 * half_chunk)
