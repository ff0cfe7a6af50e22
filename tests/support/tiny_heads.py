"""Tiny stages with heads for drafts, random, and what such a head computes, the long way.

Shape legend: T entries of a row, D width, H query heads, W head width, V vocabulary, E experts.
"""

import json
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

import omni_text.pipeline
from omni.checkpoint import Checkpoint
from omni.device.cpu import CpuDevice
from omni.stage import StageContext
from omni_ar.drafters import DraftSetup
from omni_ar.kind import build_rank_model

Weights = dict[str, Tensor]
EXPERTS = 6


def random_sizes(seed: int) -> dict[str, int]:
    """The fields of a config.json that give the sizes of a dense layer."""
    pick = random.Random(seed)
    kv_heads = pick.choice([1, 2])
    return {
        "hidden_size": pick.choice([24, 48]),
        "intermediate_size": pick.choice([20, 48]),
        "num_attention_heads": kv_heads * pick.choice([1, 2, 3]),
        "num_key_value_heads": kv_heads,
        "head_dim": pick.choice([8, 16]),
    }


def write_stage(folder: Path, seed: int = 0, *, layers: int = 8, experts: bool = False, **more: Any) -> Path:
    """A random Qwen3 checkpoint."""
    torch.manual_seed(seed)
    fields: dict[str, Any] = {
        "vocab_size": 97,
        "num_hidden_layers": layers,
        "max_position_embeddings": 256,
        "initializer_range": 0.2,
        **random_sizes(seed),
        **more,
    }
    if experts:
        chosen: dict[str, Any] = {"num_experts": EXPERTS, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
        Qwen3MoeForCausalLM(Qwen3MoeConfig(**fields, **chosen)).save_pretrained(folder)
    else:
        Qwen3ForCausalLM(Qwen3Config(**fields)).save_pretrained(folder)
    return folder


def setup_of(folder: Path, drafts: int = 3, **more: Any) -> DraftSetup:
    """Of the text stage in a folder, as a drafter gets it. more: fields of its context."""
    checkpoint = Checkpoint(folder)
    stage = omni_text.pipeline.pipeline(checkpoint).stage("text")
    given: dict[str, Any] = {"device": CpuDevice(), "dtype": torch.float32, "load_format": "auto", **more}
    context = StageContext(stage=stage, options=stage.options, checkpoint=checkpoint, **given)
    model = build_rank_model(context)
    vocab = model.shape.vocab_size
    return DraftSetup(drafts=drafts, vocab_size=vocab, max_model_len=64, model=model, context=context)


@dataclass
class TinyHead:
    """A head's config.json and weights, to be changed before `write`."""

    config: dict[str, Any]
    weights: Weights
    prefix: str = ""

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config))
        save_file({self.prefix + name: each for name, each in self.weights.items()}, folder / "model.safetensors")
        return folder


def _matrices(generator: torch.Generator, shapes: Mapping[str, tuple[int, ...]]) -> Weights:
    """Matrices, and vectors near one, so that the place of a norm shows."""
    weights: Weights = {}
    for name, shape in shapes.items():
        drawn = torch.randn(shape, generator=generator)
        weights[name] = 1 + 0.3 * drawn if len(shape) == 1 else drawn * 1.5 * shape[-1] ** -0.5
    return weights


def _norm_shapes(width: int, *names: str) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (width,) for name in names}


def _attention_shapes(config: Mapping[str, Any], inputs: int) -> dict[str, tuple[int, ...]]:
    width, head = config["hidden_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    projections = {"q_proj": (queries, inputs), "k_proj": (keys, inputs), "v_proj": (keys, inputs)}
    return {f"self_attn.{name}.weight": shape for name, shape in {**projections, "o_proj": (width, queries)}.items()}


def _mlp_shapes(width: int, inner: int, name: str = "mlp") -> dict[str, tuple[int, ...]]:
    shapes = {"gate_proj": (inner, width), "up_proj": (inner, width), "down_proj": (width, inner)}
    return {f"{name}.{part}.weight": shape for part, shape in shapes.items()}


def eagle3_head(
    stage: Path | Mapping[str, Any], seed: int = 0, *, states: int = 3, draft_size: int = 61, **more: Any
) -> TinyHead:
    """An EAGLE-3 head for a stage, with other sizes than its. stage: its checkpoint, or its part of a config.json. more: further
    fields of config.json; a `hidden_size` that is not the stage's gives the head an embedding table."""
    target = json.loads((stage / "config.json").read_text()) if isinstance(stage, Path) else stage
    vocab, generator = target["vocab_size"], torch.Generator().manual_seed(seed)
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        **random_sizes(seed + 100),
        "hidden_size": target["hidden_size"],
        "num_hidden_layers": 1,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 500.0,
        "max_position_embeddings": 128,
        "vocab_size": vocab,
        "draft_vocab_size": draft_size,
        "tie_word_embeddings": False,
        **more,
    }
    width = config["hidden_size"]
    layer = _norm_shapes(width, "input_layernorm", "hidden_norm", "post_attention_layernorm")
    layer |= _attention_shapes(config, 2 * width) | _mlp_shapes(width, config["intermediate_size"])
    shapes = {f"midlayer.{name}": shape for name, shape in layer.items()}
    shapes |= {"fc.weight": (width, states * target["hidden_size"]), "norm.weight": (width,)}
    shapes["lm_head.weight"] = (draft_size, width)
    if width != target["hidden_size"]:
        shapes["embed_tokens.weight"] = (vocab, width)
        config["target_hidden_size"] = target["hidden_size"]
    weights = _matrices(generator, shapes)
    if draft_size != vocab:
        chosen = torch.randperm(vocab, generator=generator)[:draft_size].sort().values
        weights["d2t"] = chosen - torch.arange(draft_size)
        weights["t2d"] = torch.zeros(vocab, dtype=torch.bool).index_fill_(0, chosen, True)
    return TinyHead(config, weights)


def mtp_head(config: Mapping[str, Any], seed: int = 0, *, dense: bool = True, biases: bool = False) -> Weights:
    """A head for multi-token prediction. config: the stage's part of a config.json. biases: whether its attention has those of
    Qwen2, and not the norms of Qwen3."""
    width = config["hidden_size"]
    layer = _norm_shapes(width, "input_layernorm", "post_attention_layernorm")
    attention = _attention_shapes(config, width)
    layer |= attention
    if biases:
        projections = {name: shape for name, shape in attention.items() if "o_proj" not in name}
        layer |= {name.replace("weight", "bias"): shape[:1] for name, shape in projections.items()}
    else:
        layer |= _norm_shapes(config["head_dim"], "self_attn.q_norm", "self_attn.k_norm")
    if dense:
        layer |= _mlp_shapes(width, config["intermediate_size"])
    else:
        layer["mlp.gate.weight"] = (EXPERTS, width)
        for expert in range(EXPERTS):
            layer |= _mlp_shapes(width, config["moe_intermediate_size"], f"mlp.experts.{expert}")
    shapes = {f"layers.0.{name}": shape for name, shape in layer.items()} | {"fc.weight": (width, 2 * width)}
    shapes |= _norm_shapes(width, "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
    return _matrices(torch.Generator().manual_seed(seed), shapes)


def add_mtp(folder: Path, seed: int = 0, *, dense: bool = True, prefix: str = "mtp.") -> Weights:
    """Adds a head for multi-token prediction to a checkpoint of `write_stage`; returns its weights, without the prefix."""
    weights = mtp_head(json.loads((folder / "config.json").read_text()), seed, dense=dense)
    file = folder / "model.safetensors"
    save_file(load_file(file) | {prefix + name: each for name, each in weights.items()}, file, {"format": "pt"})
    return weights


# What heads compute, without a cache: all entries of a row, in order.


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def _attention(
    x_TD: Tensor, weights: Weights, start: str, config: Mapping[str, Any], theta: float, eps: float
) -> Tensor:
    """Causal, with rotary positions from 0, and within a window by `layer_types`."""
    head, length = config["head_dim"], x_TD.shape[0]
    angle_TF = torch.arange(length)[:, None] / theta ** (torch.arange(0, head, 2) / head)

    def heads(name: str, count: int) -> Tensor:
        y_THW = (x_TD @ weights[f"{start}{name}_proj.weight"].T).view(length, count, head)
        norm = weights.get(f"{start}{name}_norm.weight")
        return (y_THW if norm is None else _norm(y_THW, norm, eps)).transpose(0, 1)

    def turned(y_HTW: Tensor) -> Tensor:
        a, b = y_HTW.chunk(2, -1)
        cos, sin = angle_TF.cos(), angle_TF.sin()
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    count, shared = config["num_attention_heads"], config["num_key_value_heads"]
    q, k, v = turned(heads("q", count)), turned(heads("k", shared)), heads("v", shared)
    k, v = (each.repeat_interleave(count // shared, 0) for each in (k, v))
    everything = torch.ones(length, length, dtype=torch.bool)
    hidden = everything.triu(1)
    if config.get("layer_types") == ["sliding_attention"]:
        hidden = hidden | everything.tril(-config["sliding_window"])
    scores = (q @ k.transpose(1, 2) / math.sqrt(head)).masked_fill(hidden, -math.inf)
    return (scores.softmax(-1) @ v).transpose(0, 1).flatten(1) @ weights[f"{start}o_proj.weight"].T


def _mlp(x_TD: Tensor, weights: Weights, start: str) -> Tensor:
    gate, up, down = (weights[f"{start}{name}_proj.weight"] for name in ("gate", "up", "down"))
    return (F.silu(x_TD @ gate.T) * (x_TD @ up.T)) @ down.T


def _experts(x_TD: Tensor, weights: Weights, start: str, top_k: int, norm_topk: bool) -> Tensor:
    share_TE = (x_TD @ weights[f"{start}gate.weight"].T).softmax(-1)
    rows = []
    for x_D, share_E in zip(x_TD, share_TE, strict=True):
        best = share_E.topk(top_k).indices.tolist()
        total = share_E[best].sum() if norm_topk else 1.0
        rows.append(
            sum(share_E[each] / total * _mlp(x_D[None], weights, f"{start}experts.{each}.")[0] for each in best)
        )
    return torch.stack(rows)


@dataclass
class Eagle3Reference:
    """embedding_VD: the table that the head reads. output: of its ids; the stage's without a vocabulary of its own."""

    head: TinyHead
    embedding_VD: Tensor
    output_VD: Tensor

    def features(self, states_TX: Tensor) -> Tensor:
        return states_TX @ self.head.weights["fc.weight"].T

    def hidden(self, ids_T: Tensor, features_TD: Tensor) -> Tensor:
        weights, config, layer = self.head.weights, self.head.config, "midlayer."
        eps = config["rms_norm_eps"]
        normed = _norm(features_TD, weights[f"{layer}hidden_norm.weight"], eps)
        x_TD = normed if config.get("norm_before_residual") else features_TD
        embedded = _norm(self.embedding_VD[ids_T], weights[f"{layer}input_layernorm.weight"], eps)
        both = torch.cat((embedded, normed), 1)
        x_TD = x_TD + _attention(both, weights, f"{layer}self_attn.", config, config["rope_theta"], eps)
        return x_TD + _mlp(
            _norm(x_TD, weights[f"{layer}post_attention_layernorm.weight"], eps), weights, f"{layer}mlp."
        )

    def logits(self, hidden_TD: Tensor) -> Tensor:
        """Of the head's ids."""
        norm_D = self.head.weights["norm.weight"]
        return _norm(hidden_TD, norm_D, self.head.config["rms_norm_eps"]) @ self.output_VD.T

    def loss(self, hidden_TD: Tensor, ids_T: Tensor) -> Tensor:
        """Of ids of the stage, those that the head lacks aside."""
        offsets_V = self.head.weights["d2t"]
        own_V = torch.full((self.embedding_VD.shape[0],), -100)
        own_V[offsets_V + torch.arange(len(offsets_V))] = torch.arange(len(offsets_V))
        return F.cross_entropy(self.logits(hidden_TD), own_V[ids_T])

    def likeliest(self, hidden_D: Tensor) -> int:
        weights, best = self.head.weights, int(self.logits(hidden_D[None]).argmax())
        return best + int(weights["d2t"][best]) if "d2t" in weights else best


@dataclass
class MtpReference:
    """config: the stage's config.json."""

    weights: Weights
    config: Mapping[str, Any]
    embedding_VD: Tensor
    output_VD: Tensor

    def features(self, states_TX: Tensor) -> Tensor:
        return states_TX

    def hidden(self, ids_T: Tensor, features_TD: Tensor) -> Tensor:
        weights, config, layer = self.weights, self.config, "layers.0."
        eps, theta = config["rms_norm_eps"], config["rope_parameters"]["rope_theta"]
        embedded = _norm(self.embedding_VD[ids_T], weights["pre_fc_norm_embedding.weight"], eps)
        both = torch.cat((embedded, _norm(features_TD, weights["pre_fc_norm_hidden.weight"], eps)), 1)
        x_TD = both @ weights["fc.weight"].T
        normed = _norm(x_TD, weights[f"{layer}input_layernorm.weight"], eps)
        x_TD = x_TD + _attention(normed, weights, f"{layer}self_attn.", config, theta, eps)
        normed = _norm(x_TD, weights[f"{layer}post_attention_layernorm.weight"], eps)
        if f"{layer}mlp.gate.weight" in weights:
            mixed = _experts(normed, weights, f"{layer}mlp.", config["num_experts_per_tok"], config["norm_topk_prob"])
        else:
            mixed = _mlp(normed, weights, f"{layer}mlp.")
        return _norm(x_TD + mixed, weights["norm.weight"], eps)

    def loss(self, hidden_TD: Tensor, ids_T: Tensor) -> Tensor:
        return F.cross_entropy(hidden_TD @ self.output_VD.T, ids_T)

    def likeliest(self, hidden_D: Tensor) -> int:
        return int((self.output_VD @ hidden_D).argmax())
