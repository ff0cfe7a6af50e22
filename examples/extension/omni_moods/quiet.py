"""Stage kind `"quiet"`: changes the volume of sound."""

from omni.payload import AudioChunk, Payload
from omni.stage import PlainStage, StageContext
from omni_moods.host import HostWorker
from omni_moods.options import QuietOptions


class QuietWorker(HostWorker):
    takes = AudioChunk

    def __init__(self, name: str, options: QuietOptions) -> None:
        super().__init__(name)
        self._volume = options.volume

    def answer(self, payload: Payload) -> AudioChunk:
        chunk = payload.meta
        assert isinstance(chunk, AudioChunk)
        return AudioChunk(samples=chunk.samples * self._volume, sample_rate=chunk.sample_rate)


class QuietKind:
    name = "quiet"
    options = QuietOptions

    def load(self, context: StageContext) -> PlainStage:
        assert isinstance(context.options, QuietOptions)
        return PlainStage(QuietWorker(context.stage.name, context.options))
