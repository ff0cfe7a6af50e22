"""The families that `handoff.py` compares, and their requests."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from bench.device import TimedDevice
from bench.emit import THINKER
from bench.engine import BenchEngine
from bench.pipelines import (
    READER,
    ROWS,
    SINK,
    TALKER,
    WRITER,
    emitting,
    family_pipeline,
    thinker_and_talker,
)
from bench.traffic import drawn, random_prompt
from omni.checkpoint import Checkpoint
from omni.pipeline import Pipeline
from omni.sampling import SamplingParams
from omni_ar.inputs import Placeholder, Prompt
from omni_ar.text_conditioning import TextConditioningArgs
from omni_qwen3_omni.config import OmniConfig, read_config

_BLOCK = 16
_BUDGET = 2048


@dataclass(frozen=True, slots=True)
class Setup:
    checkpoint: Checkpoint
    device: TimedDevice
    dtype: str
    graphs: bool
    tiny: bool

    @property
    def config(self) -> OmniConfig:
        return read_config(self.checkpoint)


class HandoffFamily(ABC):
    """rows: requests at once. stages: names of all. drawn: the stage whose steps a picture shows."""

    name: ClassVar[str]
    title: ClassVar[str]
    stages: ClassVar[tuple[str, ...]]
    drawn: ClassVar[str]

    def __init__(self, setup: Setup, rows: int) -> None:
        self.setup, self.rows = setup, rows
        self.prompt = 8 if setup.tiny else 512

    @abstractmethod
    def pipeline(self) -> Pipeline: ...

    @abstractmethod
    def ask(self, bench: BenchEngine, name: str, *, short: bool = False) -> None:
        """Submits all requests at once. name: of the round; it makes the prompts."""

    def run(self, bench: BenchEngine, name: str, *, short: bool = False) -> None:
        """Submits all requests at once, and runs until all are answered."""
        self.ask(bench, name, short=short)
        bench.run()

    def engine(self, graphs: bool) -> BenchEngine:
        setup = self.setup
        return BenchEngine(self.pipeline(), setup.checkpoint, setup.device, setup.dtype, graphs)

    def options(self, tokens: int) -> dict[str, object]:
        """Options of a stage whose requests draw `tokens` tokens."""
        blocks = self.rows * (-(-(self.prompt + tokens) // _BLOCK) + 2)
        return {
            "max_num_seqs": self.rows,
            "max_num_batched_tokens": _BUDGET,
            "block_size": _BLOCK,
            "num_blocks": max(blocks, 8192 // _BLOCK),
            "graph_batch_sizes": (self.rows,),
        }

    def waits(self) -> int:
        """Steps that the first request makes before the last one decodes."""
        return 2 * (self.rows * self.prompt // _BUDGET + self.rows // 8) + 16


class HiddenFamily(HandoffFamily):
    name = "hidden"
    title = "a hidden state with every token"
    stages = (WRITER, READER)
    drawn = WRITER

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup, 2 if setup.tiny else 32)

    def _tokens(self, short: bool) -> int:
        return self.waits() + (16 if short or self.setup.tiny else 128)

    def pipeline(self) -> Pipeline:
        setup = self.setup
        width = setup.config.thinker.width
        return emitting(family_pipeline(setup.checkpoint), width, emits=True, **self.options(self._tokens(False)))

    def ask(self, bench: BenchEngine, name: str, *, short: bool = False) -> None:
        generator, shape = np.random.default_rng(list(name.encode())), bench.runners[WRITER]._model.shape
        for row in range(self.rows):
            prompt = random_prompt(generator, self.prompt, shape)
            sampling = {WRITER: drawn(1000 + row, self._tokens(short))}
            bench.submit(f"{name} {row}", {WRITER: [prompt]}, sampling, ("text", ROWS))


class OmniFamily(HandoffFamily):
    name = "omni"
    title = "Qwen3-Omni's thinker and talker"
    stages = (THINKER, TALKER, SINK)
    drawn = TALKER

    def __init__(self, setup: Setup, rows: int | None = None) -> None:
        super().__init__(setup, rows or (2 if setup.tiny else 8))
        self._media = 3 if setup.tiny else 128

    def _tokens(self, short: bool) -> int:
        return 24 if short or self.setup.tiny else 64

    def _frames(self, short: bool) -> int:
        return 40 if short or self.setup.tiny else 250

    def pipeline(self) -> Pipeline:
        options = {THINKER: self.options(self._tokens(False)), TALKER: self.options(self._frames(False) + 16)}
        talker = self.setup.config.talker
        assert talker is not None
        pipeline = family_pipeline(self.setup.checkpoint)
        return thinker_and_talker(pipeline, talker.num_groups, options, joined=True)

    def ask(self, bench: BenchEngine, name: str, *, short: bool = False) -> None:
        generator, shape = np.random.default_rng(list(name.encode())), bench.runners[THINKER]._model.shape
        for row in range(self.rows):
            request = f"{name} {row}"
            prompt = random_prompt(generator, self.prompt, shape, payload=self._media)
            sampling = {
                THINKER: drawn(1000 + row, self._tokens(short)),
                # What else a talker samples with is the family's own: a penalty, suppressed ids, top-k.
                TALKER: SamplingParams(max_tokens=self._frames(short) + 1, seed=1000 + row, ignore_eos=True),
            }
            edges = {f"{THINKER}->{TALKER}": self._talker_args(generator, request)}
            bench.submit(request, {THINKER: [prompt]}, sampling, ("text", ROWS), edges)

    def _talker_args(self, generator: np.random.Generator, key: str) -> TextConditioningArgs:
        """A talker's prompt as long as the thinker's, of text ids, with the thinker's hidden states in front."""
        config = self.setup.config
        assert config.talker is not None
        text = generator.integers(0, config.thinker_vocab_size, self.prompt, dtype=np.int64)
        codec = np.full(self.prompt, config.talker.codec_pad, np.int64)
        prompt = Prompt(
            columns=np.stack([text, codec]),
            positions=np.broadcast_to(np.arange(self.prompt), (3, self.prompt)).copy(),
            next_position=self.prompt,
            placeholders=(Placeholder(name="hidden", index=0, positions=np.arange(self._media), key=key),),
        )
        return TextConditioningArgs(prompt=prompt, lead=(), eos=config.tts_eos, pad=config.tts_pad)
