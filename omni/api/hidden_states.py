"""Hidden states of a request, for `Omni.hidden_states` and `AsyncOmni.hidden_states`."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import torch

from omni.api.request import GenerateArguments, Sampling
from omni.api.results import Result
from omni.errors import InputError, StageError, quoted
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
        """`[L, prompt_tokens, D]`"""
        return self.states[:, : self.prompt_tokens]

    @property
    def generated(self) -> torch.Tensor:
        """`[L, generated tokens - 1, D]`"""
        return self.states[:, self.prompt_tokens :]


@dataclass(frozen=True, slots=True)
class Asked:
    """A checked call. modality: of the states. arguments: of `generate`. layers: to give, of those that the stage keeps."""

    stage: str
    modality: str
    layers: tuple[int, ...]
    arguments: GenerateArguments


def check_hidden_states(
    pipeline: Pipeline,
    stage: str | None,
    layers: Sequence[int] | None,
    sampling: Sampling,
    priority: int,
    cache_salt: str,
) -> Asked:
    """Raises InputError for a stage or a layer whose hidden states are not kept."""
    keeping = {output.stage: output.modality for output in pipeline.outputs if output.hidden_states}
    name = stage if stage is not None else pipeline.main_stage
    stages = [each.name for each in pipeline.stages]
    if name is not None and name not in stages:
        raise InputError("stage", f"the pipeline has no {quoted(name)}", f"use one of {', '.join(stages)}")
    if name not in keeping:
        layer = f'overrides={{"{name if name is not None else "STAGE"}.hidden_layers": [0]}}'
        kept = f"; {', '.join(keeping)} keeps some" if keeping else ""
        problem = f"{quoted(name)} keeps no hidden states{kept}"
        raise InputError("stage", problem, f"name a stage of kind 'ar', and load the model with {layer}")
    kept_layers: tuple[int, ...] = msgspec.structs.asdict(pipeline.stage(name).options)["hidden_layers"]
    given: object = layers
    if given is not None and not isinstance(given, list | tuple | range):
        raise InputError(
            "layers", f"is {quoted(layers)}", f"give a list of layers: [{', '.join(map(str, kept_layers))}]"
        )
    chosen = kept_layers if layers is None else tuple(layers)
    for layer_number in chosen:
        if layer_number not in kept_layers:
            problem = f"{quoted(layer_number)} is not kept"
            remedy = (
                f"use some of {', '.join(map(str, kept_layers))}, or load the model with other {name}.hidden_layers"
            )
            raise InputError("layers", problem, remedy)
    modalities = (keeping[name], "text") if name == pipeline.text_stage else (keeping[name],)
    arguments: GenerateArguments = {
        "modalities": modalities,
        "sampling": {name: SamplingParams(max_tokens=1)} if sampling is None else sampling,
        "priority": priority,
        "cache_salt": cache_salt,
    }
    return Asked(name, keeping[name], chosen, arguments)


def read_hidden_states(asked: Asked, result: Result, device: str | torch.device | None) -> HiddenStates:
    """Raises StageError for a request that ended before its first token."""
    payloads = result.outputs.get(asked.modality, ())
    if not payloads:
        raise StageError(asked.stage, "giving hidden states", "the request ended before its first token")
    (payload,) = payloads
    given, hidden = payload.meta, payload.tensors["hidden"]
    assert isinstance(given, RequestHiddenStates)
    assert isinstance(hidden, torch.Tensor)
    places = [given.layers.index(layer) for layer in asked.layers]
    states = hidden.unflatten(1, (len(given.layers), -1)).transpose(0, 1)[places]
    return HiddenStates(states.to(device or "cpu"), asked.layers, given.prompt_tokens, result)
