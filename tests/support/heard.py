"""What a request was given, whatever the pipeline, and whether it is what another run gave."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from omni.engine import EngineOutput, RequestFailed, RequestFinished, StageFinished, StageOutput
from omni.errors import OmniError
from omni.payload import AudioChunk, GeneratedTokens, TokenLogprobs
from support.hidden_reading import Reading
from support.tap import CodesChunk

TOLERANCE = 1e-4
"""Of float32 numbers of the order of 1: batches add them up in different orders."""


@dataclass(slots=True)
class Heard:
    """exact: tokens, frames and reasons by modality or stage; each as it came. near: numbers by modality."""

    exact: dict[str, list[object]] = field(default_factory=dict)
    near: dict[str, list[NDArray[np.float32]]] = field(default_factory=dict)
    error: OmniError | None = None
    over: bool = False

    @property
    def scored(self) -> int:
        """How many log-probabilities came."""
        return sum(len(part) for name, parts in self.near.items() if " logprobs " in name for part in parts)

    def take(self, output: EngineOutput) -> None:
        assert not self.over, f"{output} after the last message"
        match output:
            case StageOutput(modality=modality, meta=meta):
                self._take_chunk(modality, meta)
            case StageFinished(stage=stage):
                self.exact[f"end of {stage}"] = [output.reason]
            case RequestFinished():
                self.over = True
            case RequestFailed(error=error):
                self.over, self.error = True, error

    def numbers(self, modality: str) -> NDArray[np.float32]:
        """All of them, one after the other."""
        return np.concatenate([np.empty(0, np.float32), *self.near.get(modality, [])])

    def assert_like(self, whole: "Heard") -> None:
        """The same as `whole`, or its beginning if the request was given up."""
        modalities = self.near.keys() if self.error is not None else whole.near.keys()
        for name in self.exact if self.error is not None else whole.exact:
            mine = self.exact.get(name, [])
            wanted = whole.exact[name][: len(mine)] if self.error is not None else whole.exact[name]
            assert mine == wanted, f"{name}: {mine}, not {wanted}"
        for name in modalities:
            mine, wanted = self.numbers(name), whole.numbers(name)
            wanted = wanted[: len(mine)] if self.error is not None else wanted
            assert mine.shape == wanted.shape, f"{name}: {mine.shape}, not {wanted.shape}"
            np.testing.assert_allclose(mine, wanted, rtol=TOLERANCE, atol=TOLERANCE, err_msg=name)

    def _take_chunk(self, modality: str, meta: object) -> None:
        match meta:
            case GeneratedTokens(ids=ids):
                self.exact.setdefault(modality, []).extend(ids)
            case CodesChunk(codes=codes):
                self.exact.setdefault(modality, []).append(codes)
            case AudioChunk(samples=samples):
                self.near.setdefault(modality, []).append(samples)
            case Reading(prompt=prompt, index=index, numbers=numbers):
                kind = f"{modality} of the {'prompt' if prompt else 'tokens'}"
                self.exact.setdefault(kind, []).append(index)
                self.near.setdefault(kind, []).append(np.array(numbers, np.float32))
            case TokenLogprobs(prompt=prompt, logprobs=logprobs):
                kind = f"{modality} logprobs of the {'prompt' if prompt else 'tokens'}"
                self.near.setdefault(kind, []).append(logprobs.reshape(-1))
            case other:
                raise TypeError(f"an unexpected output {other!r}")
