"""The cutting of clips for the audio tower."""

from collections.abc import Sequence

from omni_encoder.towers.conv2d_clips import conv2d_chunks


def encoded_frames(frames: int, half_chunk: int) -> int:
    """Number of audio tokens of a clip of `frames` mel frames."""
    return conv2d_chunks(half_chunk).embeddings(frames)


def padded_chunk(frames: Sequence[int], half_chunk: int) -> int:
    """Frames that the published processor pads the chunks of a request's clips to: those of the longest clip's first chunk."""
    return min(max(frames), 2 * half_chunk)
