"""Selection of the frames that are denoised together, and of those that are rendered, on the host; and their initial noise."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from omni.stage import Feed
from omni_diffusion.model import DiffusionModel, StateT
from omni_diffusion.options import DiffusionOptions


@dataclass(frozen=True, slots=True)
class DenoisingWindow:
    """Code frames that are denoised together; fields as in `model.Windows`. last: whether no frame follows."""

    first: int
    context: int
    fresh: int
    frames: int
    last: bool


@dataclass(frozen=True, slots=True)
class RenderPart:
    """Numbers of latent frames; parts that share a batch have equal numbers. fresh: frames of a window, to be kept. count:
    rendered frames. left, right: context in front of and after them. ends: whether the stream ends after them."""

    fresh: int
    left: int
    count: int
    right: int
    ends: bool = False

    @property
    def seen(self) -> int:
        """Number of latent frames that the model sees; 0 if none is rendered."""
        return self.left + self.count + self.right if self.count else 0


@dataclass(frozen=True, slots=True)
class WindowSizes:
    """Sizes of denoising windows, in code frames. repeats: latent frames of a code frame. context: latent frames on either side for
    rendering."""

    first: int
    later: int
    before: int
    after: int
    block: int
    repeats: int
    context: int

    @classmethod
    def of(cls, options: DiffusionOptions, model: DiffusionModel[StateT]) -> "WindowSizes":
        block = model.block_frames
        blocks = (options.first_chunk_blocks, options.chunk_blocks, options.blocks_before, options.blocks_after)
        first, later, before, after = (count * block for count in blocks)
        return cls(
            first=first,
            later=later,
            before=before,
            after=after,
            block=block,
            repeats=model.repeats,
            context=model.render_context,
        )

    @property
    def frames(self) -> int:
        return max(self.first, self.before + self.later) + self.after

    @property
    def capacity(self) -> int:
        """Waiting frames on the device: those of a window, and as many again to free the producer's memory."""
        return 2 * self.frames

    @property
    def widths(self) -> tuple[int, ...]:
        """Possible numbers of code frames of a step: a batch takes the smallest that holds all of its windows."""
        return tuple(sorted({self.first + self.after, self.frames}))

    def width(self, frames: int) -> int:
        return next(width for width in self.widths if width >= frames)

    @property
    def most_fresh(self) -> int:
        """Maximum number of fresh latent frames of a window."""
        return (max(self.first, self.later) + self.after) * self.repeats

    @property
    def kept(self) -> int:
        """Maximum number of a row's latent frames that rendering may still need."""
        return self.most_fresh + 2 * self.context

    def next(self, done: int, known: int, ended: bool) -> DenoisingWindow | None:
        """The next window of a stream with `done` denoised and `known` available frames; None if it cannot begin yet. The windows
        depend on the length of the stream, never on the arrival times of its frames or its end."""
        chunk, context = (self.later if done else self.first), min(self.before, done)
        left = known - done
        if left >= chunk + self.after:
            return DenoisingWindow(done - context, context, chunk, context + chunk + self.after, last=False)
        if ended and left:
            return DenoisingWindow(done - context, context, left, context + left, last=True)
        return None

    def part(self, rendered: int, done: int, fresh: int, last: bool) -> RenderPart:
        """The part to render once latents up to `done` are available, `fresh` new ones. last: whether none will follow."""
        until = done if last else max(rendered, done - self.context)
        if until == rendered:
            return RenderPart(fresh, 0, 0, 0)
        return RenderPart(fresh, min(self.context, rendered), until - rendered, done - until, last)

    @property
    def end(self) -> RenderPart:
        """The part that computes the end of every sufficiently long stream: all latents that a row keeps."""
        return RenderPart(self.most_fresh, self.context, self.context + self.most_fresh, 0, ends=True)

    def batch_part(self, rendered: int, part: RenderPart) -> RenderPart:
        """The part that a batch computes for a row's part. `end` for the last one, of any size, of a stream that fills it: so
        these are captured too."""
        return self.end if part.ends and rendered + part.count >= self.end.seen else part

    def usual_parts(self) -> list[RenderPart]:
        """The distinct parts of every sufficiently long stream, in order."""
        parts: list[RenderPart] = []
        rendered = done = 0
        # After the frames that a first part has in front of it, every part equals the one a chunk before.
        chunks = 2 + -(-2 * self.context // (self.later * self.repeats))
        for frames in (self.first, *[self.later] * chunks):
            done += frames * self.repeats
            parts.append(self.part(rendered, done, frames * self.repeats, last=False))
            rendered += parts[-1].count
        return list(dict.fromkeys(parts))


class Noise:
    """The noise of one stream. A block's noise is a function of seed, sample index and the block's number alone. given: `[T, M]`,
    used instead. block, repeats, width: code frames of a block, latent frames of a code frame, values of a latent frame."""

    def __init__(
        self,
        seed: int,
        sample_index: int,
        block: int,
        repeats: int,
        width: int,
        given: NDArray[np.float32] | None = None,
    ) -> None:
        self._seed, self._sample_index = seed, sample_index
        self._block, self._repeats, self._width = block, repeats, width
        self._given = given
        self._drawn: dict[int, NDArray[np.float32]] = {}
        """Noise of the last window, whose blocks may be in the next one too."""

    def of(self, window: DenoisingWindow) -> NDArray[np.float32]:
        """The window's noise, `[frames * repeats, M]`. Raises ValueError if the given noise is too short."""
        start, count = window.first * self._repeats, window.frames * self._repeats
        if self._given is not None:
            if len(self._given) < start + count:
                problem = f"noise is for {len(self._given)} latent frames, the codes are for {start + count} or more"
                raise ValueError(problem)
            return self._given[start : start + count]
        first = window.first // self._block
        numbers = range(first, first + -(-window.frames // self._block))
        self._drawn = {n: self._drawn[n] if n in self._drawn else self._draw(n) for n in numbers}
        return np.concatenate([self._drawn[n] for n in numbers])[:count]

    def _draw(self, number: int) -> NDArray[np.float32]:
        key, counter = np.array([self._seed, number], np.uint64), np.array([0, 0, 0, self._sample_index], np.uint64)
        random = np.random.Generator(np.random.Philox(key=key, counter=counter))
        return random.standard_normal((self._block * self._repeats, self._width), np.float32)


def read_noise(message: Feed, width: int) -> NDArray[np.float32] | None:
    """The noise of a voice's message, `[T, M]`, or None. width: M. Raises ValueError, naming the expected tensor."""
    noise = message.payload.tensors.get("noise")
    if noise is None:
        return None
    if not isinstance(noise, Tensor) or noise.device.type != "cpu" or not message.arrived:
        raise ValueError("noise is read by the host: give a tensor in its memory")
    if noise.dtype != torch.float32 or noise.dim() != 2 or noise.shape[1] != width:
        raise ValueError(f"noise is {noise.dtype} {tuple(noise.shape)}; wanted float32 [latent frames, {width}]")
    return np.array(noise.numpy())
