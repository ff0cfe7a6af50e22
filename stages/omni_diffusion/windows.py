"""Which frames are denoised together, and which are rendered: arithmetic of the host."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from omni_diffusion.model import DiffusionModel, StateT
from omni_diffusion.options import DiffusionOptions


@dataclass(frozen=True, slots=True)
class Window:
    """Code frames that are denoised together; as in `model.Windows`. last: nothing of the stream follows, that is certain."""

    first: int
    context: int
    fresh: int
    frames: int
    last: bool


@dataclass(frozen=True, slots=True)
class Piece:
    """Latent frames; pieces that share a batch have equal numbers of each kind.

    fresh: from a window, to be kept. left, count, right: in front of what is rendered, rendered, and behind it.
    """

    fresh: int
    left: int
    count: int
    right: int

    @property
    def seen(self) -> int:
        """What the model sees of it; nothing if nothing is rendered."""
        return self.left + self.count + self.right if self.count else 0


@dataclass(frozen=True, slots=True)
class WindowSizes:
    """first, later, before, after, block: in code frames. repeats: latent frames of one. context: latent frames, for rendering."""

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
        return cls(first, later, before, after, block, model.repeats, model.render_context)

    @classmethod
    def whole(cls, model: DiffusionModel[StateT], blocks: int) -> "WindowSizes":
        """One window, for streams of up to so many blocks."""
        return cls.of(
            DiffusionOptions(first_chunk_blocks=blocks, chunk_blocks=1, blocks_before=0, blocks_after=0), model
        )

    @property
    def frames(self) -> int:
        """Code frames of the largest window."""
        return max(self.first, self.before + self.later) + self.after

    @property
    def capacity(self) -> int:
        """Frames of a request that wait on the device: those of a window, and as many that leave the producer's memory early."""
        return 2 * self.frames

    @property
    def widths(self) -> tuple[int, ...]:
        """Numbers of code frames that steps are made of: a batch takes the least that holds all of its windows."""
        return tuple(sorted({self.first + self.after, self.frames}))

    def width(self, frames: int) -> int:
        return next(width for width in self.widths if width >= frames)

    @property
    def most_fresh(self) -> int:
        """Latent frames that one window gives at most."""
        return (max(self.first, self.later) + self.after) * self.repeats

    @property
    def kept(self) -> int:
        """Latent frames of a row that rendering may still need."""
        return self.most_fresh + 2 * self.context

    def next(self, done: int, known: int, ended: bool) -> Window | None:
        """The window of a stream whose first `done` frames are denoised and of which `known` are there; None if it is not time.

        It depends on how long the stream is, and never on when its frames came or how soon it was known to have ended.
        """
        chunk, context = (self.later if done else self.first), min(self.before, done)
        left = known - done
        if left >= chunk + self.after:
            return Window(done - context, context, chunk, context + chunk + self.after, last=False)
        if ended and left:
            return Window(done - context, context, left, context + left, last=True)
        return None

    def piece(self, rendered: int, done: int, fresh: int, last: bool) -> Piece:
        """What is rendered after latent frames up to `done` are there, of which `fresh` were not before. last: none will follow."""
        until = done if last else max(rendered, done - self.context)
        if until == rendered:
            return Piece(fresh, 0, 0, 0)
        return Piece(fresh, min(self.context, rendered), until - rendered, done - until)

    def usual_pieces(self) -> list[Piece]:
        """Those of every stream that is long enough, in the order in which they come, each once."""
        return list(dict.fromkeys(self._pieces()))

    def _pieces(self) -> Iterator[Piece]:
        rendered = done = 0
        # Behind the frames that a first piece has in front of it, all is as it was one chunk before.
        chunks = 2 + -(-2 * self.context // (self.later * self.repeats))
        for start, end in pairwise([0, self.first, *(self.first + n * self.later for n in range(1, chunks + 1))]):
            fresh, done = (end - start) * self.repeats, end * self.repeats
            piece = self.piece(rendered, done, fresh, last=False)
            rendered += piece.count
            yield piece
