"""What the host knows of one request at the diffusion stage."""

from dataclasses import dataclass

from omni_diffusion.noise import Noise
from omni_diffusion.windows import Piece, Window, WindowSizes
from omni_frames import FrameRequest


@dataclass(slots=True, eq=False)
class DiffusionRequest(FrameRequest):
    """A request from `Open` to its end.

    seed, sample_index: what its noise is drawn from. noise, voice: None before it is known who speaks.
    passed: frames of the stream that the row's ring no longer has.
    window, step: what is being denoised, and how many of its steps were launched.
    done: code frames whose latents are kept, or were. rendered: latent frames whose samples are on their way, or were given.
    """

    seed: int = 0
    sample_index: int = 0
    noise: Noise | None = None
    voice: int | None = None
    passed: int = 0
    window: Window | None = None
    step: int = 0
    rendered: int = 0

    @property
    def known(self) -> int:
        """Frames of the stream that came to the row."""
        return self.passed + self.buffered

    def finished(self, sizes: WindowSizes) -> bool:
        """Whether there is nothing left to wait for."""
        rendered = self.rendered == self.known * sizes.repeats
        return self.ended and self.window is None and not self.in_flight and rendered

    def next_window(self, sizes: WindowSizes) -> Window | None:
        """The window that may begin now."""
        if self.window is not None or self.paused or self.voice is None:
            return None
        return sizes.next(self.done, self.known, self.ended)

    def begin(self, window: Window, sizes: WindowSizes) -> None:
        """Its beginning was launched, so frames that only this window sees leave the ring."""
        self.window, self.step, self.alone = window, 0, False
        needed = max(window.first + window.context + window.fresh - sizes.before, self.passed)
        self.forget(needed - self.passed, sizes.capacity)
        self.passed = needed

    def next_piece(self, sizes: WindowSizes, steps: int) -> Piece | None:
        """What may be kept and rendered now. steps: of a window."""
        if self.window is None:
            rest = self.ended and self.known == self.done and self.rendered < self.done * sizes.repeats
            return sizes.piece(self.rendered, self.done * sizes.repeats, 0, last=True) if rest else None
        if self.step < steps:
            return None
        done = (self.done + self.window.fresh) * sizes.repeats
        return sizes.piece(self.rendered, done, self.window.fresh * sizes.repeats, self.window.last)

    def take(self, piece: Piece) -> None:
        """Its keeping and rendering were launched."""
        if self.window is not None:
            self.done += self.window.fresh
        self.window, self.alone = None, False
        self.rendered += piece.count
