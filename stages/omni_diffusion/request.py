"""The host's record of a request at a diffusion stage."""

from dataclasses import dataclass

from omni_diffusion.windows import DenoisingWindow, Noise, RenderPart, WindowSizes
from omni_frames.request import FrameRequest


@dataclass(slots=True, eq=False)
class DiffusionRequest(FrameRequest):
    """seed, sample_index: determine its noise. noise, voice: None before the voice has arrived. passed: number of frames of the
    stream that have left the row's ring. window, step: the window that is being denoised, and the number of its launched steps.
    done: number of code frames whose latents have been kept. rendered: number of latent frames whose samples are in flight or
    emitted."""

    seed: int = 0
    sample_index: int = 0
    noise: Noise | None = None
    voice: int | None = None
    passed: int = 0
    window: DenoisingWindow | None = None
    step: int = 0
    rendered: int = 0

    @property
    def known(self) -> int:
        """Number of frames of the stream that have arrived in the row."""
        return self.passed + self.buffered

    def next_window(self, sizes: WindowSizes) -> DenoisingWindow | None:
        waits = self.window is not None or self.paused or self.voice is None
        return None if waits else sizes.next(self.done, self.known, self.ended)

    def begin(self, window: DenoisingWindow, sizes: WindowSizes) -> None:
        """Records the launch of a window's beginning: frames that only this window sees leave the ring."""
        self.window, self.step = window, 0
        needed = max(window.first + window.context + window.fresh - sizes.before, self.passed)
        self.forget(needed - self.passed, sizes.capacity)
        self.passed = needed

    def next_part(self, sizes: WindowSizes, steps: int) -> RenderPart | None:
        """The part that may be kept and rendered now. steps: number of steps of a window."""
        if self.window is None:
            rest = self.ended and self.known == self.done and self.rendered < self.done * sizes.repeats
            return sizes.part(self.rendered, self.done * sizes.repeats, 0, last=True) if rest else None
        if self.step < steps:
            return None
        done = (self.done + self.window.fresh) * sizes.repeats
        return sizes.part(self.rendered, done, self.window.fresh * sizes.repeats, self.window.last)

    def take(self, part: RenderPart) -> None:
        if self.window is not None:
            self.done += self.window.fresh
        self.window = None
        self.rendered += part.count
