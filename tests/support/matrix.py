"""The matrix: its axes and cells, the parameters asked for, the outputs of a request, and the families that it runs on."""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from omni.device import Device
from omni.device.cpu import CpuDevice
from omni.engine import Engine, EngineOutput, EngineRequest, RequestFailed, RequestFinished, StageFinished, StageOutput
from omni.errors import OmniError, StageError
from omni.frontend.compile import CompiledSampling, SamplingCompiler
from omni.frontend.vocabulary import Vocabulary
from omni.payload import AudioChunk, GeneratedTokens, TokenLogprobs
from omni.pipeline import Pipeline
from omni.sampling import SamplingParams, StructuredOutput
from omni_ar.options import ArOptions
from tests.support.hidden_model import Reading
from tests.support.tap import CodesChunk

BLOCK = 2
"""Tokens of a block: so few that every row soon wants another."""
ROOMY = 400
"""Blocks that are never used up."""


@dataclass(frozen=True, slots=True)
class Cell:
    """in_flight: steps. few_blocks: so few that requests are preempted. tiny_budget: a few tokens a step. cached: prefix cache.
    captured: steps replay what was captured. asked: name of the parameters that are tested."""

    in_flight: int
    few_blocks: bool
    tiny_budget: bool
    cached: bool
    captured: bool
    asked: str

    def __str__(self) -> str:
        blocks = "few blocks" if self.few_blocks else "any pool"
        budget = "tiny budget" if self.tiny_budget else "any budget"
        cache, how = "cached" if self.cached else "not cached", "captured" if self.captured else "eager"
        return f"{self.asked}, {self.in_flight} in flight, {blocks}, {budget}, {cache}, {how}"

    @property
    def seed(self) -> int:
        """Of the device and of what else is left to chance: no two cells are alike."""
        return sum(map(ord, str(self)))

    def settings(self, few: Mapping[str, int]) -> dict[str, object]:
        """Overrides. few: by stage, blocks that do not do."""
        return {
            f"{stage}.{name}": value
            for stage, blocks in few.items()
            for name, value in {
                "max_in_flight": self.in_flight,
                "block_size": BLOCK,
                "num_blocks": blocks if self.few_blocks else ROOMY,
                "max_num_batched_tokens": 5 if self.tiny_budget else 2048,
                "prefix_cache": self.cached,
                "graph_batch_sizes": None if self.captured else (),
                "graph_chunk_sizes": None if self.captured else (),
                "max_num_seqs": 6,
            }.items()
        }


def product(asked: Sequence[str]) -> list[Cell]:
    """Every cell."""
    truth = (False, True)
    return [Cell(*values) for values in itertools.product((1, 2, 4), truth, truth, truth, truth, asked)]


def pairs(cell: Cell) -> set[tuple[int, object, int, object]]:
    """Axis and value, twice: what meets in the cell."""
    values = (cell.in_flight, cell.few_blocks, cell.tiny_budget, cell.cached, cell.asked)
    return {(i, values[i], j, values[j]) for i, j in itertools.combinations(range(len(values)), 2)}


def covering(asked: Sequence[str]) -> list[Cell]:
    """Cells in which every pair of values of two axes occurs. The hardest come first where several would do."""
    cells = product(asked)[::-1]
    missing = set().union(*map(pairs, cells))
    chosen = []
    while missing:
        best = max(cells, key=lambda cell: len(pairs(cell) & missing))
        missing -= pairs(best)
        chosen.append(best)
    return chosen


# The parameters that the matrix asks for, made so that each of them changes what a model says.

TOKENS = 16
FORM_TOKENS = 36
SCHEMA: dict[str, object] = {
    "type": "object",
    "properties": {"color": {"enum": ["red", "blue"]}, "sides": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["color", "sides"],
    "additionalProperties": False,
}

GREEDY, SEEDED, HOT = "greedy", "seeded", "seeded, hot"
SAMPLED: Mapping[str, Any] = {"temperature": 0.9, "top_k": 40, "top_p": 0.95, "seed": 5}
SETS = (
    GREEDY,
    SEEDED,
    HOT,
    "repetition penalty",
    "presence penalty",
    "frequency penalty",
    "bad words",
    "logprobs",
    "prompt logprobs",
    "min_tokens",
    "stop string",
    "JSON schema",
    "JSON schema, penalty, logprobs",
    "host processor",
    "all together",
)
"""The names of the parameters."""
PLAYED = tuple(name for name in SETS if name != HOT)
"""What the matrix's cells ask for. The other one is there to be compared with."""
AGAINST = {"JSON schema": HOT, "JSON schema, penalty, logprobs": "JSON schema"}
"""What the others of these parameters are compared with, where that is not `GREEDY`."""
SAYS_THE_SAME = frozenset({"logprobs", "prompt logprobs"})
"""They add outputs; the tokens stay."""


def text_sets(say: Callable[[SamplingParams], list[list[int]]], vocabulary: Vocabulary) -> dict[str, SamplingParams]:
    """By name. say: answers to the prompts that will be asked."""
    plain = SamplingParams(temperature=0.0, max_tokens=TOKENS)
    said = say(plain)
    early = tuple(dict.fromkeys(one[3] for one in said))
    late = [one[11] for one in say(msgspec.structs.replace(plain, suppress_token_ids=early))]
    # White space may stand anywhere in JSON; without it a text ends soon.
    blanks = [token for token, text in enumerate(vocabulary.tokens) if text and not text.strip()]
    hot = {"temperature": 0.6, "seed": 3, "max_tokens": FORM_TOKENS, "logit_bias": dict.fromkeys(blanks, -100.0)}
    form = {**hot, "structured": StructuredOutput(json=SCHEMA)}
    fields: dict[str, Mapping[str, Any]] = {
        GREEDY: {},
        SEEDED: SAMPLED,
        HOT: hot,
        "repetition penalty": {"repetition_penalty": 1.4},
        "presence penalty": {"presence_penalty": 1.8},
        "frequency penalty": {"frequency_penalty": 1.6},
        "bad words": {
            "bad_words": tuple(dict.fromkeys(_words(said, vocabulary))),
            "bad_words_ids": tuple((one[2], one[3]) for one in said),
        },
        "logprobs": {"logprobs": 3},
        "prompt logprobs": {"prompt_logprobs": 2},
        "min_tokens": {"min_tokens": 9, "stop_token_ids": tuple(dict.fromkeys((*early, *late)))},
        "stop string": {"stop": tuple(dict.fromkeys(_stops(said[1:], vocabulary)))},
        "JSON schema": form,
        "JSON schema, penalty, logprobs": {**form, "frequency_penalty": 1.5, "repetition_penalty": 1.2, "logprobs": 2},
        "host processor": {"processors": {"no_repeat": {"size": 1}}},
        "all together": {
            **SAMPLED,
            "min_p": 0.01,
            "top_n_sigma": 3.0,
            "repetition_penalty": 1.2,
            "frequency_penalty": 0.5,
            "presence_penalty": -0.5,
            "logit_bias": {said[0][1]: -3.0, said[-1][2]: 2.5},
            "logprobs": 1,
            "processors": {"no_repeat": {"size": 2}},
        },
    }
    assert tuple(fields) == SETS
    return {name: msgspec.structs.replace(plain, **changes) for name, changes in fields.items()}


def _words(said: Sequence[Sequence[int]], vocabulary: Vocabulary) -> Iterator[str]:
    """Of each answer, one token that is a word to the tokenizer."""
    for answer in said:
        for token in answer[1:]:
            text = vocabulary.written(token).decode(errors="replace").removeprefix(" ")
            if (token,) in {tuple(vocabulary.encode(text)), tuple(vocabulary.encode(f" {text}"))}:
                yield text
                break


def _stops(said: Sequence[Sequence[int]], vocabulary: Vocabulary) -> Iterator[str]:
    """Of each answer, a text that begins in one token and ends in the next."""
    for answer in said:
        written = [vocabulary.written(token) for token in answer]
        for before, after in itertools.pairwise(written[9:]):
            seam = before[-2:] + after[:3]
            if before and after and seam.isascii():
                yield seam.decode()
                break


# Everything that a request was told: what must be equal, and what must be near.

LEFT = StageError("request", "being tested", "it was given up")
"""The error of requests that a test gives up."""
NEAR = 1e-5
"""Of 1, or of the number where that is more: log-probabilities, and what readers make of hidden states. Batches add float32 numbers
up in different orders."""
NEAR_SOUND = 1e-4
"""Of samples, whose peak is below 1."""


@dataclass(slots=True)
class Told:
    """exact: by what it is, as it came. near: numbers, by what they are. heard: called for each output."""

    exact: dict[str, list[object]] = field(default_factory=dict)
    near: dict[str, list[NDArray[np.float32]]] = field(default_factory=dict)
    error: OmniError | None = None
    over: bool = False
    heard: Callable[[], None] = lambda: None

    @property
    def tokens(self) -> list[int]:
        """Those that were given out."""
        return [token for token in self.exact.get("text", []) if isinstance(token, int)]

    @property
    def codes(self) -> list[tuple[int, ...]]:
        """Of each frame, group 0 first."""
        return [frame for frame in self.exact.get("codes", []) if isinstance(frame, tuple)]

    def end(self, stage: str) -> tuple[str, tuple[int, ...]]:
        """Why a stage ended, and the tokens it held back."""
        ((reason, held, _),) = self.exact[f"end of {stage}"]
        return reason, held

    def take(self, output: EngineOutput) -> None:
        assert not self.over, f"{output} after the last message"
        match output:
            case StageOutput(modality=modality, meta=meta):
                self._take_chunk(modality, meta)
            case StageFinished(stage=stage, reason=reason, held=held, counts=counts):
                self.exact[f"end of {stage}"] = [(reason, held, counts.get("tokens"))]
            case RequestFinished():
                self.over = True
            case RequestFailed(error=error):
                self.over, self.error = True, error
        self.heard()

    def assert_like(self, whole: "Told") -> None:
        """The same as `whole`, or its beginning if the request was given up."""
        cut = self.error is not None
        if cut and self.error is not LEFT:
            raise self.error
        names = [*whole.exact, *whole.near] if not cut else [*self.exact, *self.near]
        for name in dict.fromkeys([*names, *self.exact, *self.near]):
            mine, wanted = self.exact.get(name, []), whole.exact.get(name, [])
            assert mine == (wanted[: len(mine)] if cut else wanted), f"{name}: {mine}, not {wanted}"
            numbers, right = self.numbers(name), whole.numbers(name)
            right = right[: len(numbers)] if cut else right
            assert numbers.shape == right.shape, f"{name}: {numbers.shape}, not {right.shape}"
            limit = NEAR_SOUND if name == "audio" else NEAR
            np.testing.assert_allclose(numbers, right, rtol=NEAR, atol=limit, err_msg=name)

    def numbers(self, name: str) -> NDArray[np.float32]:
        """All of that name, one after the other."""
        return np.concatenate([np.empty(0, np.float32), *self.near.get(name, [])])

    def _take_chunk(self, modality: str, meta: object) -> None:
        match meta:
            case GeneratedTokens(ids=ids):
                self._add(modality, ids)
            case CodesChunk(codes=codes):
                self._add(modality, [codes])
            case AudioChunk(samples=samples):
                self.near.setdefault(modality, []).append(samples)
            case Reading(prompt=prompt, index=index, numbers=numbers):
                name = f"{modality} of the {'prompt' if prompt else 'tokens'}"
                self._add(name, [index])
                self.near.setdefault(name, []).append(np.array(numbers, np.float32))
            case TokenLogprobs(first=first, ids=ids_nk, logprobs=logprobs_nk, ranks=ranks_n, prompt=prompt):
                name = f"logprobs of the {'prompt' if prompt else 'tokens'}"
                rows = zip(range(first, first + len(ranks_n)), ids_nk.tolist(), ranks_n.tolist(), strict=True)
                self._add(name, [(place, tuple(ids), rank) for place, ids, rank in rows])
                self.near.setdefault(name, []).append(logprobs_nk.reshape(-1))
            case other:
                raise TypeError(f"an unexpected output {other!r}")

    def _add(self, name: str, values: Sequence[object]) -> None:
        self.exact.setdefault(name, []).extend(values)


# What the matrix needs of a model family: an engine under any settings, and requests by content and parameters.


class Family(ABC):
    """writer: the stage that writes the text. stages: the autoregressive ones. prompts: how many different prompts there are."""

    writer: str
    stages: tuple[str, ...]
    prompts: int
    vocabulary: Vocabulary
    pipeline: Pipeline

    @abstractmethod
    def engine(self, device: Device, settings: Mapping[str, object]) -> Engine: ...

    @abstractmethod
    def prepared(
        self, prompt: int, compiled: CompiledSampling, request_id: str, sample_index: int
    ) -> EngineRequest: ...

    @abstractmethod
    def few(self, asked: str) -> Mapping[str, int]:
        """By stage, blocks in which any of the requests fits alone, and not all together."""

    @cached_property
    def sets(self) -> Mapping[str, Mapping[str, SamplingParams]]:
        """Sampling by stage, by the name of the parameters."""

        def say(params: SamplingParams) -> list[list[int]]:
            return [self._calm({self.writer: params}, prompt).tokens for prompt in range(self.prompts)]

        return {name: {self.writer: params} for name, params in text_sets(say, self.vocabulary).items()}

    @property
    def defaults(self) -> SamplingParams:
        """Of the stage that writes."""
        options = self.pipeline.stage(self.writer).options
        assert isinstance(options, ArOptions)
        return options.sampling

    @cached_property
    def compiler(self) -> SamplingCompiler:
        return SamplingCompiler(self.pipeline, self.writer, self.vocabulary)

    def compiled(self, asked: str) -> CompiledSampling:
        return self._compiled(self.sets[asked])

    def request(self, asked: str, prompt: int, request_id: str, sample_index: int = 0) -> EngineRequest:
        return self.prepared(prompt, self.compiled(asked), request_id, sample_index)

    @cache  # noqa: B019  (a family lives as long as the tests)
    def alone(self, asked: str, prompt: int, sample_index: int = 0) -> Told:
        """What such a request is told by itself: one step at a time, on a device that is never late, all the room there is."""
        return self._calm(self.sets[asked], prompt, sample_index)

    def _compiled(self, sampling: Mapping[str, SamplingParams]) -> CompiledSampling:
        fields = {stage: f"sampling.{stage}" for stage in sampling}
        self.compiler.check(sampling, fields)
        return self.compiler.compile(sampling, fields)

    def _calm(self, sampling: Mapping[str, SamplingParams], prompt: int, sample_index: int = 0) -> Told:
        told = Told()
        engine = self._calm_engine
        request = self.prepared(prompt, self._compiled(sampling), "alone", sample_index)
        with torch.inference_mode():
            engine.submit(request, told.take)
            while not engine.idle:
                engine.tick()
        if told.error is not None:
            raise told.error
        return told

    @cached_property
    def _calm_engine(self) -> Engine:
        easy = {"max_in_flight": 1, "prefix_cache": False}
        settings = {f"{stage}.{name}": value for stage in self.stages for name, value in easy.items()}
        return self.engine(CpuDevice(), settings)


def blocks_for_one(prompt: int, params: SamplingParams) -> int:
    """For the longest request. prompt: its tokens at most."""
    assert params.max_tokens is not None
    return -(-(prompt + params.max_tokens) // BLOCK)
