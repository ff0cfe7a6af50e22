"""What the matrix needs of a model family: an engine under any settings, and requests by content and parameters."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cache, cached_property

import torch

from omni.device import Device
from omni.device.cpu import CpuDevice
from omni.engine import Engine, EngineRequest
from omni.frontend.compile import CompiledSampling, SamplingCompiler
from omni.frontend.vocabulary import Vocabulary
from omni.pipeline import Pipeline
from omni.sampling import SamplingParams
from omni_ar.options import ArOptions
from support.matrix_axes import BLOCK
from support.matrix_sets import text_sets
from support.matrix_told import Told


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
