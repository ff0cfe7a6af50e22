"""The matrix: its axes and cells, the parameters of requests, and the interface that a model family implements for it."""

import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from omni.checkpoint import Checkpoint
from omni.device import Device
from omni.device.cpu import CpuDevice
from omni.engine import Engine, EngineRequest, Plan, resolve_pipeline
from omni.frontend.base import Prepared
from omni.frontend.compile import CompiledSampling, SamplingCompiler
from omni.frontend.vocabulary import Vocabulary
from omni.hookspecs import hookimpl
from omni.plugin.entries import LogitsProcessorEntry
from omni.sampling import HostLogitsProcessor, LogitsEdit, SamplingParams, StructuredOutput
from omni.testing.engines import TickedEngine
from omni_ar.options import ArOptions
from omni_ar.processors import HistoryProcessor
from tests.plugins.cut_stages import CutStages
from tests.support.plugins import plugins_of
from tests.support.received import Received

BLOCK = 2
"""Tokens of a block: so few that every row soon needs another."""
ENOUGH_BLOCKS = 400
"""Blocks that are never used up."""


@dataclass(frozen=True, slots=True)
class Cell:
    """in_flight: steps. few_blocks: so few that requests are preempted. tiny_budget: a few tokens a step. cached: prefix cache.
    captured: steps replay captured graphs. asked: name of the parameters that are tested."""

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
                "num_blocks": blocks if self.few_blocks else ENOUGH_BLOCKS,
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
    cells = [(cell, pairs(cell)) for cell in product(asked)[::-1]]
    missing = set().union(*(found for _, found in cells))
    chosen = []
    while missing:
        best, found = max(cells, key=lambda each: len(each[1] & missing))
        missing -= found
        chosen.append(best)
    return chosen


# The parameters of the matrix. Each of them changes a model's tokens.

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
"""The sets of parameters in cells. The other set is for comparison."""
AGAINST = {"JSON schema": HOT, "JSON schema, penalty, logprobs": "JSON schema"}
"""The set that another set is compared with, where that is not `GREEDY`."""
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


class Family(ABC):
    """A model family in the matrix: an engine under any settings, and requests by content and parameters.

    writer: the stage that writes the text. stages: the autoregressive ones. modalities: that requests ask for. asked: what cells
    ask for. also: sampling of further stages. prompts: what the front end makes of the contents.
    """

    writer: str
    stages: tuple[str, ...]
    modalities = frozenset({"text"})
    asked: Sequence[str] = PLAYED
    also: Mapping[str, SamplingParams] = {}
    vocabulary: Vocabulary
    prompts: Sequence[Prepared]

    def __init__(self, folder: Path, *names: str, **modules: str) -> None:
        """names, modules: of the plugins that the checkpoint in `folder` needs, as `plugins_of` takes them."""
        self.folder, self.checkpoint = folder, Checkpoint(folder)
        self._plugins = plugins_of(*names, matrix=__name__, **modules)
        self.pipeline = resolve_pipeline(self.checkpoint, self._plugins).pipeline

    @abstractmethod
    def said(self, asked: str, prompt: int) -> tuple[list[int], list[tuple[int, ...]] | None]:
        """The reference's tokens without regard to stop strings, and its codes if it speaks."""

    def lengths(self, stage: str) -> list[int]:
        """Of the stage's prompts, in tokens."""
        return [one.prompt_tokens for one in self.prompts]

    def change(self, plan: Plan) -> Plan:
        """What an engine runs of the family's plan."""
        return plan

    def engine(self, device: Device, settings: Mapping[str, object], cut: CutStages | None = None) -> Engine:
        """cut: its stages on several ranks."""

        def change(plan: Plan) -> Plan:
            changed = self.change(plan)
            return cut.change(changed) if cut is not None else changed

        return TickedEngine(self.folder, self._plugins, settings, device, change, graphs=True).engine

    def few(self, asked: str) -> Mapping[str, int]:
        """By stage, blocks in which any of the requests fits alone, and not all together."""
        longest = {stage: max(self.lengths(stage)) + (self.sets[asked][stage].max_tokens or 0) for stage in self.stages}
        return {stage: -(-length // BLOCK) for stage, length in longest.items()}

    @cached_property
    def sets(self) -> Mapping[str, Mapping[str, SamplingParams]]:
        """Sampling by stage, by the name of the parameters."""

        def say(params: SamplingParams) -> list[list[int]]:
            return [self._calm({self.writer: params}, prompt).tokens for prompt in range(len(self.prompts))]

        texts = text_sets(say, self.vocabulary)
        return {name: {self.writer: params, **self.also} for name, params in texts.items()}

    def defaults(self, stage: str) -> SamplingParams:
        options = self.pipeline.stage(stage).options
        assert isinstance(options, ArOptions)
        return options.sampling

    @cached_property
    def compiler(self) -> SamplingCompiler:
        return SamplingCompiler(self.pipeline, self.writer, self.vocabulary)

    def compiled(self, asked: str) -> CompiledSampling:
        return self._compiled(self.sets[asked])

    def request(self, asked: str, prompt: int, request_id: str, sample_index: int = 0) -> EngineRequest:
        return self._request(prompt, self.compiled(asked), request_id, sample_index)

    @cache  # noqa: B019  (a family lives as long as the tests)
    def alone(self, asked: str, prompt: int, sample_index: int = 0) -> Received:
        """What such a request gets by itself: one step at a time, on a device that is never late, all blocks and slots free."""
        return self._calm(self.sets[asked], prompt, sample_index)

    def _request(
        self, prompt: int, compiled: CompiledSampling, request_id: str, sample_index: int = 0
    ) -> EngineRequest:
        one, sampling = self.prompts[prompt], {**self.also, **compiled.sampling}
        request = EngineRequest(request_id, self.modalities, one.inputs, edges=one.edges, sampling=sampling)
        return replace(request, rules=self.compiler.host_rules(compiled), sample_index=sample_index)

    def _compiled(self, sampling: Mapping[str, SamplingParams]) -> CompiledSampling:
        fields = {stage: f"sampling.{stage}" for stage in sampling}
        self.compiler.check(sampling, fields)
        return self.compiler.compile(sampling, fields)

    def _calm(self, sampling: Mapping[str, SamplingParams], prompt: int, sample_index: int = 0) -> Received:
        received, engine = Received(), self._calm_engine
        request = self._request(prompt, self._compiled(sampling), "alone", sample_index)
        with torch.inference_mode():
            engine.submit(request, received.take)
            while not engine.idle:
                if not engine.tick():
                    time.sleep(0)  # a thread of host work needs the interpreter's lock
        if received.error is not None:
            raise received.error
        return received

    @cached_property
    def _calm_engine(self) -> Engine:
        easy = {"max_in_flight": 1, "prefix_cache": False}
        settings = {f"{stage}.{name}": value for stage in self.stages for name, value in easy.items()}
        return self.engine(CpuDevice(), settings)


# A logits processor of a plugin that reads the tokens of a request: no run of `size` tokens occurs twice.


class Unrepeated:
    """One text."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._said: list[int] = []

    def push(self, token: int) -> bool:
        self._said.append(token)
        return False

    def edit(self) -> LogitsEdit:
        said, before = self._said, self._size - 1
        newest = said[len(said) - before :]
        again = {said[i] for i in range(before, len(said)) if said[i - before : i] == newest}
        ids = np.array(sorted(again), np.int64)
        return LogitsEdit(ids=ids, bias=np.full(len(ids), -np.inf, np.float32))


class NoRepeat(HistoryProcessor):
    def open(self, args: Mapping[str, object], vocab_size: int) -> HostLogitsProcessor:
        size = args["size"]
        assert isinstance(size, int)
        return Unrepeated(size)


@hookimpl
def omni_logits_processors() -> Sequence[LogitsProcessorEntry]:
    return [LogitsProcessorEntry(name="no_repeat", processor=f"{__name__}:NoRepeat")]
