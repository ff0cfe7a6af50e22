"""The result of one request."""

from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray

from omni.engine import EngineOutput, RequestFailed, RequestFinished, StageFinished, StageOutput
from omni.errors import OmniError
from omni.payload import AudioChunk, GeneratedTokens


@dataclass(slots=True)
class EngineResult:
    """outputs: as they came, by modality. stages: how each stage ended. error: why the request failed. finished: no more comes."""

    outputs: dict[str, list[msgspec.Struct]] = field(default_factory=dict)
    stages: dict[str, StageFinished] = field(default_factory=dict)
    error: OmniError | None = None
    finished: bool = False

    @property
    def tokens(self) -> list[int]:
        """The token ids of all outputs."""
        metas = [meta for each in self.outputs.values() for meta in each]
        return [token for meta in metas if isinstance(meta, GeneratedTokens) for token in meta.ids]

    @property
    def audio(self) -> NDArray[np.float32]:
        """The samples of all outputs, `[S]`."""
        metas = [meta for each in self.outputs.values() for meta in each]
        return np.concatenate([np.empty(0, np.float32), *(m.samples for m in metas if isinstance(m, AudioChunk))])

    def take(self, output: EngineOutput) -> None:
        """Adds an output; the engine calls it as the request's sink."""
        assert not self.finished, f"{output} after the last message"
        match output:
            case StageOutput(modality=modality, meta=meta):
                self.outputs.setdefault(modality, []).append(meta)
            case StageFinished():
                self.stages[output.stage] = output
            case RequestFinished():
                self.finished = True
            case RequestFailed(error=error):
                self.finished, self.error = True, error
