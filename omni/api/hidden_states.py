"""Hidden states of a request, for `Omni.hidden_states` and `AsyncOmni.hidden_states`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

import msgspec
import torch

from omni.api.arguments import GenerateArguments, Sampling, reading
from omni.api.request import split_requests
from omni.api.results import Result
from omni.device import name_device
from omni.errors import ConfigError, InputError, StageError, quoted
from omni.payload import RequestHiddenStates
from omni.pipeline import Pipeline
from omni.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class HiddenStates:
    """Hidden states of one request at one stage.

    states: `[L, n, D]`, in the stage's dtype: L layers, n positions, D width. The positions are those of the prompt, then
    those of all generated tokens but the last, which the stage never reads: n is `prompt_tokens + generated tokens - 1`.
    layers: their numbers, as in published hidden states: 0 for the input embeddings, k for the output of layer k, and the
    number of layers for the final, normalized states.
    prompt_tokens: positions of the prompt, media included.
    result: the answer, with the generated `tokens` if the stage writes the text.
    """

    states: torch.Tensor
    layers: tuple[int, ...]
    prompt_tokens: int
    result: Result

    @property
    def prompt(self) -> torch.Tensor:
        """The states of the prompt's tokens, `[L, prompt_tokens, D]`."""
        return self.states[:, : self.prompt_tokens]

    @property
    def generated(self) -> torch.Tensor:
        """The states of all generated tokens but the last, `[L, generated tokens - 1, D]`."""
        return self.states[:, self.prompt_tokens :]


@dataclass(frozen=True, slots=True)
class HiddenStatesCall:
    """The checked arguments of a call. modality: the modality of the states. layers: the layers to return, among those that the
    stage keeps. arguments: the arguments for `generate`."""

    stage: str
    modality: str
    layers: tuple[int, ...]
    device: torch.device
    arguments: GenerateArguments


class HiddenStatesArguments(TypedDict, total=False):
    """Keyword arguments of `hidden_states`.

    stage: one that keeps hidden states (the setting `<stage>.hidden_layers`). Default: None, the stage that writes the text.
    layers: some of the layers that the stage keeps. Default: None, all of them.
    device: of the result, moved there from host memory: "cpu", "cuda" or "cuda:N". Default: None, the host.
    sampling: as of `generate`. Default: None, one token, so that the states are the prompt's alone.
    priority, cache_salt: as of `generate`.
    """

    stage: str | None
    layers: Sequence[int] | None
    device: str | torch.device | None
    sampling: Sampling
    priority: int
    cache_salt: str


def check_hidden_states(pipeline: Pipeline, messages: object, arguments: HiddenStatesArguments) -> HiddenStatesCall:
    """Raises InputError naming the field, for any value, and TypeError for an unknown argument."""
    unknown = arguments.keys() - HiddenStatesArguments.__optional_keys__
    if unknown:
        raise TypeError(f"unexpected keyword argument {min(unknown)!r}")
    if split_requests(messages)[1]:
        remedy = "give one chat, and call it for each: from several threads or tasks they run together"
        raise InputError("messages", "are a list of chats", remedy)
    with reading("device"):
        device = _device(arguments.get("device"))
    with reading("stage"):
        name, modality = _keeping(pipeline, arguments.get("stage"))
    with reading("layers"):
        layers = _layers(pipeline, name, arguments.get("layers"))
    sampling = arguments.get("sampling")
    given: GenerateArguments = {
        "modalities": (modality, "text") if name == pipeline.text_stage else (modality,),
        "sampling": {name: SamplingParams(max_tokens=1)} if sampling is None else sampling,
        "priority": arguments.get("priority", 0),
        "cache_salt": arguments.get("cache_salt", ""),
    }
    return HiddenStatesCall(name, modality, layers, device, given)


def _device(given: object) -> torch.device:
    if given is None:
        return torch.device("cpu")
    if not isinstance(given, str | torch.device):
        raise InputError("device", f"is {quoted(given)}", 'use "cpu", "cuda" or "cuda:N"')
    try:
        device = name_device(str(given))
    except ConfigError as error:
        raise InputError("device", error.problem, error.remedy) from error
    count = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= count:
        raise InputError("device", f"{quoted(str(given))} does not exist here", f"there are {count} CUDA devices")
    return device


def _keeping(pipeline: Pipeline, stage: object) -> tuple[str, str]:
    """The stage, and the modality of its hidden states."""
    keeping = {output.stage: output.modality for output in pipeline.outputs if output.hidden_states}
    if not isinstance(stage, str | None):
        raise InputError("stage", f"is {quoted(stage)}", "give the name of a stage")
    name = stage if stage is not None else pipeline.main_stage
    stages = [each.name for each in pipeline.stages]
    if name is not None and name not in stages:
        raise InputError("stage", f"the pipeline has no {quoted(name)}", f"use one of {', '.join(stages)}")
    if name not in keeping:
        layer = f'overrides={{"{name if name is not None else "STAGE"}.hidden_layers": [0]}}'
        kept = f"; {', '.join(keeping)} keeps some" if keeping else ""
        problem = f"{quoted(name)} keeps no hidden states{kept}"
        raise InputError("stage", problem, f"name a stage of kind 'ar', and load the model with {layer}")
    return name, keeping[name]


def _layers(pipeline: Pipeline, name: str, layers: object) -> tuple[int, ...]:
    kept_layers: tuple[int, ...] = msgspec.structs.asdict(pipeline.stage(name).options)["hidden_layers"]
    if layers is None:
        return kept_layers
    if not isinstance(layers, list | tuple | range) or not layers:
        raise InputError(
            "layers", f"is {quoted(layers)}", f"give a list of layers: [{', '.join(map(str, kept_layers))}]"
        )
    for layer_number in layers:
        if isinstance(layer_number, bool) or layer_number not in kept_layers:
            problem = f"{quoted(layer_number)} is not kept"
            remedy = (
                f"use some of {', '.join(map(str, kept_layers))}, or load the model with other {name}.hidden_layers"
            )
            raise InputError("layers", problem, remedy)
    return tuple(map(int, layers))


def read_hidden_states(call: HiddenStatesCall, result: Result) -> HiddenStates:
    """Raises StageError for a request that ended before its first token."""
    payloads = result.outputs.get(call.modality, ())
    if not payloads:
        raise StageError(call.stage, "giving hidden states", "the request ended before its first token")
    (payload,) = payloads
    given, hidden = payload.meta, payload.tensors["hidden"]
    assert isinstance(given, RequestHiddenStates)
    assert isinstance(hidden, torch.Tensor)
    indexes = [given.layers.index(layer) for layer in call.layers]
    states = hidden.unflatten(1, (len(given.layers), -1)).transpose(0, 1)[indexes]
    return HiddenStates(states.to(call.device), call.layers, given.prompt_tokens, result)
