"""A listener of streamed speech: the arrival of its chunks, and the sound ahead of the listener."""

import time
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np


@dataclass(frozen=True, slots=True)
class Chunk:
    """came: arrival, in seconds after the request. sound: seconds of it."""

    came: float
    sound: float


@dataclass(frozen=True, slots=True)
class SoundStream:
    """One answer. began: of the request, by `time.perf_counter`. chunks: at least one."""

    began: float
    chunks: tuple[Chunk, ...]

    @property
    def first_audio(self) -> float:
        return self.chunks[0].came

    @property
    def ended(self) -> float:
        """Time of `time.perf_counter`."""
        return self.began + self.chunks[-1].came

    @property
    def sound(self) -> float:
        return sum(chunk.sound for chunk in self.chunks)

    @property
    def rtf(self) -> float:
        return self.chunks[-1].came / self.sound

    @property
    def slacks(self) -> list[float]:
        """Seconds of sound ahead of the listener when each chunk but the first arrives. The listener plays from the first chunk
        on, and waits where the slack is negative: later chunks are played that much later."""
        slacks, played_until = [], self.chunks[0].came + self.chunks[0].sound
        for chunk in self.chunks[1:]:
            slacks.append(played_until - chunk.came)
            played_until = max(played_until, chunk.came) + chunk.sound
        return slacks


@dataclass(frozen=True, slots=True)
class Crowd:
    """Many streams together. Seconds. least_slack: None if no stream has a second chunk. gaps: streams that ran dry. chunks: the
    median sound of a stream's first, second, third and later chunks."""

    streams: int
    sound_per_second: float
    first_audio_p50: float
    first_audio_p95: float
    first_audio_max: float
    rtf: float
    least_slack: float | None
    slack_p5: float | None
    gaps: int
    chunks: tuple[float, ...]


async def listen(sounds: AsyncIterator[float]) -> SoundStream:
    """The stream of one request, which begins now. sounds: seconds of each chunk, as it comes. Raises RuntimeError without any."""
    began = time.perf_counter()
    chunks = [Chunk(time.perf_counter() - began, sound) async for sound in sounds if sound]
    if not chunks:
        raise RuntimeError("a request ended without sound")
    return SoundStream(began, tuple(chunks))


def crowd_of(streams: Sequence[SoundStream]) -> Crowd:
    """sound_per_second: of all, from the first request to the last chunk."""
    seconds = max(stream.ended for stream in streams) - min(stream.began for stream in streams)
    first = [stream.first_audio for stream in streams]
    slacks = [slack for stream in streams for slack in stream.slacks]
    return Crowd(
        streams=len(streams),
        sound_per_second=sum(stream.sound for stream in streams) / seconds,
        first_audio_p50=_percentile(first, 50),
        first_audio_p95=_percentile(first, 95),
        first_audio_max=max(first),
        rtf=median(stream.rtf for stream in streams),
        least_slack=min(slacks, default=None),
        slack_p5=_percentile(slacks, 5) if slacks else None,
        gaps=sum(min(stream.slacks, default=0.0) < 0 for stream in streams),
        chunks=_schedule(streams),
    )


def _schedule(streams: Sequence[SoundStream], shown: int = 3) -> tuple[float, ...]:
    places = [
        [stream.chunks[place].sound for stream in streams if len(stream.chunks) > place] for place in range(shown)
    ]
    # The last chunk is the remainder.
    later = [chunk.sound for stream in streams for chunk in stream.chunks[shown:-1]]
    return tuple(median(sounds) for sounds in (*places, later) if sounds)


def _percentile(values: Iterable[float], percent: float) -> float:
    return float(np.percentile(list(values), percent))
