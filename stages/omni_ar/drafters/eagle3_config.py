"""The config.json of an EAGLE-3 head."""

from collections.abc import Mapping
from typing import Any

import msgspec
from transformers import LlamaConfig

from omni.checkpoint.checks import Section
from omni.checkpoint.hf_config import parse_config
from omni.errors import CheckpointError, quoted
from omni_ar.layers import DecoderConfig, decoder_config

OTHER_HEAD = "use a head of the layout LlamaForCausalLMEagle3"
"""The remedy for a head that is not supported."""
_LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
_UNSUPPORTED_FLAGS = ("fc_norm", "norm_before_fc", "norm_output", "parallel_drafting")


class HeadConfig(msgspec.Struct, frozen=True, kw_only=True):
    """vocab_size: of the model that the head was trained for. draft_size: number of ids that it drafts. target_width: of the
    stage's hidden states. norm_before_residual: whether the residual stream begins after the norm of the features."""

    decoder: DecoderConfig
    vocab_size: int
    draft_size: int
    target_width: int
    norm_before_residual: bool


def read_config(raw: Mapping[str, Any]) -> HeadConfig:
    """The config.json of a head. Raises CheckpointError, naming the field, for one that is missing, impossible or not supported."""
    fields = _flat(raw)
    given = Section(fields)
    given.require_counts("hidden_size", "intermediate_size", "num_attention_heads")
    given.require_counts("vocab_size", most=2**22)
    _check_supported(given)
    hf = parse_config(LlamaConfig, fields, "EAGLE-3 head")
    known = Section(hf.to_dict())
    known.require_supported({"num_hidden_layers": 1, "mlp_bias": False})
    for part in (given, known.part("rope_parameters")):
        if part.get("partial_rotary_factor") is not None:
            part.require_supported({"partial_rotary_factor": 1.0})
    decoder = msgspec.structs.replace(decoder_config(hf), qk_norm=False, mrope_section=None)
    sizes = {"draft_vocab_size": given["vocab_size"], "target_hidden_size": decoder.width}
    for name in sizes:
        if given.get(name) is not None:
            given.require_counts(name, most=2**22)
            sizes[name] = given[name]
    draft_size, vocab_size = sizes["draft_vocab_size"], given["vocab_size"]
    given.require(draft_size <= vocab_size, "draft_vocab_size", f"is {draft_size:,}, above vocab_size, {vocab_size:,}")
    return HeadConfig(
        decoder=decoder,
        vocab_size=vocab_size,
        draft_size=draft_size,
        target_width=sizes["target_hidden_size"],
        norm_before_residual=_flag(given, "norm_before_residual", False),
    )


def _flat(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a config.json in one table. Some heads have the layer's fields in a table of their own.

    A window counts only with `layer_types`, as in vLLM: trainers copy `sliding_window` from the stage's config.json, and the heads
    attend to the whole text.
    """
    layer = raw.get("transformer_layer_config")
    fields = {**layer, **raw, "model_type": layer.get("model_type")} if isinstance(layer, Mapping) else dict(raw)
    if fields.get("layer_types") is None:
        fields.pop("sliding_window", None)
    return fields


def _flag(config: Section, name: str, default: bool) -> bool:
    """Raises CheckpointError unless the value is true, false, null or absent: a string would count as true."""
    value = config.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        problem = f"is {quoted(value)}, neither true nor false"
        raise CheckpointError(config.field(name), problem, "write true or false, without quotes")
    return value


def _check_supported(config: Section) -> None:
    kind, eagle = config.get("model_type"), _eagle_part(config)
    if kind not in (None, "llama"):
        raise CheckpointError(config.field("model_type"), f"{quoted(kind)} is not supported", OTHER_HEAD)
    if not _flag(eagle, "use_aux_hidden_state", True):
        problem = "is false: the head reads the last hidden state alone"
        raise CheckpointError(eagle.field("use_aux_hidden_state"), problem, OTHER_HEAD)
    for part in (config, eagle):
        wrong = [name for name in _UNSUPPORTED_FLAGS if _flag(part, name, False)]
        for name in (*wrong, *(["quantization_config"] if part.get("quantization_config") else ())):
            raise CheckpointError(part.field(name), f"is {quoted(part[name])}, which is not supported", OTHER_HEAD)


def _eagle_part(config: Section) -> Section:
    return config.part("eagle_config") if config.get("eagle_config") is not None else Section({}, "eagle_config")


def chosen_layers(raw: Mapping[str, Any], num_layers: int) -> tuple[int, ...]:
    """Numbers of the hidden states. `eagle_config` numbers the outputs of layers from 0; the same list beside the other fields
    numbers the inputs; both follow the trainers that write them. An empty list counts as absent."""
    config = Section(raw)
    for part, shift in ((config, 0), (_eagle_part(config), 1)):
        if part.get(_LAYER_IDS) not in (None, []):
            part.require_list(_LAYER_IDS)
            part.require_counts(_LAYER_IDS, least=0)
            layers = tuple(each + shift for each in part[_LAYER_IDS])
            check_layers(layers, num_layers, part.field(_LAYER_IDS))
            return layers
    layers = (2, num_layers // 2, num_layers - 3)
    check_layers(layers, num_layers, config.field(_LAYER_IDS))
    return layers


def check_layers(layers: tuple[int, ...], num_layers: int, field: str) -> None:
    """Raises CheckpointError for numbers that the stage lacks, and for those that are not in the order of the columns of `fc`."""
    inside = all(0 <= layer < num_layers for layer in layers)
    if not layers or not inside or list(layers) != sorted(set(layers)):
        problem = f"selects hidden states {list(layers)} of a stage of {num_layers} layers"
        remedy = (
            f"give ascending numbers from 0 to {num_layers - 1} as drafter_args.layers, or use a head for this model"
        )
        raise CheckpointError(field, problem, remedy)
