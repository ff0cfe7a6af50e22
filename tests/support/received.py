"""All outputs of a request, whatever the pipeline, and whether they are those of another run."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from omni.engine import EngineOutput, RequestFailed, RequestFinished, StageFinished, StageOutput
from omni.errors import OmniError
from omni.payload import AudioChunk, GeneratedTokens, LogprobsChunk, Payload
from omni.testing.engines import GIVEN_UP
from tests.support.hidden_model import Reading
from tests.support.tap import CodesChunk

NEAR = 1e-5
"""Of 1, or of the number where that is more: log-probabilities, and what readers make of hidden states. Batches add float32 numbers
up in different orders."""
NEAR_SOUND = 1e-4
"""Of samples, whose peak is below 1."""


@dataclass(slots=True)
class Received:
    """exact: outputs by name, in order. near: numbers, by name. sounds: the names of those that are samples.
    ends: by stage, why it ended, and the tokens it held back."""

    exact: dict[str, list[object]] = field(default_factory=dict)
    near: dict[str, list[NDArray[np.float32]]] = field(default_factory=dict)
    sounds: set[str] = field(default_factory=set)
    ends: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    error: OmniError | None = None
    finished: bool = False

    @property
    def tokens(self) -> list[int]:
        """The ids of the text output."""
        return [token for token in self.exact.get("text", []) if isinstance(token, int)]

    @property
    def codes(self) -> list[tuple[int, ...]]:
        """Of each frame, group 0 first."""
        return [frame for frame in self.exact.get("codes", []) if isinstance(frame, tuple)]

    @property
    def scored(self) -> int:
        """The number of log-probabilities."""
        return sum(len(part) for name, parts in self.near.items() if "logprobs of" in name for part in parts)

    def numbers(self, name: str) -> NDArray[np.float32]:
        """All of that name, one after the other."""
        return np.concatenate([np.empty(0, np.float32), *self.near.get(name, [])])

    def take(self, output: EngineOutput) -> None:
        assert not self.finished, f"{output} after the last message"
        match output:
            case StageOutput(modality=modality, meta=meta):
                self._take_chunk(modality, meta)
            case StageFinished(stage=stage, reason=reason, withheld=withheld, counts=counts):
                self.ends[stage] = reason, withheld
                self._add(f"end of {stage}", [(reason, withheld, counts.get("tokens"))])
            case RequestFinished():
                self.finished = True
            case RequestFailed(error=error):
                self.finished, self.error = True, error

    def assert_like(self, whole: "Received") -> None:
        """The same as `whole`, or its beginning if the request was given up."""
        cut = self.error is not None
        if self.error is not None and self.error is not GIVEN_UP:
            raise self.error
        names = [*whole.exact, *whole.near] if not cut else [*self.exact, *self.near]
        for name in dict.fromkeys([*names, *self.exact, *self.near]):
            mine, wanted = self.exact.get(name, []), whole.exact.get(name, [])
            assert mine == (wanted[: len(mine)] if cut else wanted), f"{name}: {mine}, not {wanted}"
            numbers, right = self.numbers(name), whole.numbers(name)
            right = right[: len(numbers)] if cut else right
            assert numbers.shape == right.shape, f"{name}: {numbers.shape}, not {right.shape}"
            limit = NEAR_SOUND if name in self.sounds else NEAR
            np.testing.assert_allclose(numbers, right, rtol=NEAR, atol=limit, err_msg=name)

    def _take_chunk(self, modality: str, meta: object) -> None:
        match meta:
            case GeneratedTokens(ids=ids):
                self._add(modality, ids)
            case CodesChunk(codes=codes):
                self._add(modality, [codes])
            case AudioChunk(samples=samples):
                self.sounds.add(modality)
                self.near.setdefault(modality, []).append(samples)
            case Reading(prompt=prompt, index=index, numbers=numbers):
                name = f"{modality} of the {'prompt' if prompt else 'tokens'}"
                self._add(name, [index])
                self.near.setdefault(name, []).append(np.array(numbers, np.float32))
            case LogprobsChunk(first=first, ids=ids_nk, logprobs=logprobs_nk, ranks=ranks_n, prompt=prompt):
                name = f"logprobs of the {'prompt' if prompt else 'tokens'}"
                rows = zip(range(first, first + len(ranks_n)), ids_nk.tolist(), ranks_n.tolist(), strict=True)
                self._add(name, [(place, tuple(ids), rank) for place, ids, rank in rows])
                self.near.setdefault(name, []).append(logprobs_nk.reshape(-1))
            case other:
                raise TypeError(f"an unexpected output {other!r}")

    def _add(self, name: str, values: Sequence[object]) -> None:
        self.exact.setdefault(name, []).extend(values)


def tensors_of(payload: Payload) -> dict[str, Tensor]:
    found = {name: tensor for name, tensor in payload.tensors.items() if isinstance(tensor, Tensor)}
    assert len(found) == len(payload.tensors)
    return found
