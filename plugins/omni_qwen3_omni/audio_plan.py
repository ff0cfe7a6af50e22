"""The cutting of clips for the audio tower."""

from collections.abc import Sequence

from omni_encoder.towers.clip_encoder import Chunks


def clip_chunks(window: int, infer_window: int | None = None) -> Chunks:
    """window, infer_window: half a chunk, and the range of attention, in mel frames, as in the tower's config."""
    run = 1 if infer_window is None else infer_window // (2 * window)
    return Chunks(frames=2 * window, convolutions=3, run=run)


def encoded_frames(frames: int, window: int) -> int:
    """Number of audio tokens of a clip of `frames` mel frames."""
    return clip_chunks(window).embeddings(frames)


def padded_chunk(frames: Sequence[int], window: int) -> int:
    """Frames that the published processor pads the chunks of a request's clips to: those of the longest clip's first chunk."""
    return min(max(frames), 2 * window)
