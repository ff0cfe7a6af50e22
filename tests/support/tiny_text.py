"""Tiny Qwen3 checkpoints, and an engine over one."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from omni.device import Device
from omni.engine import (
    EngineOutput,
    EngineRequest,
    RequestFailed,
    StageFinished,
    StageOutput,
)
from omni.payload import GeneratedTokens, Payload
from omni.sampling import SamplingParams
from omni.testing.engines import GIVEN_UP, TickedEngine
from omni_qwen3_omni.tiny.tokenizer import write_tokenizer
from tests.support.ar_driver import plain_prompt
from tests.support.plugins import plugins_of

VOCAB = 211
_SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,  # the default leaves logits so flat that a model repeats one token
}
_WINDOW: dict[str, Any] = {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}
_EXPERTS: dict[str, Any] = {
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "mlp_only_layers": [1],
}


def write_text_model(folder: Path, kind: str) -> PreTrainedModel:
    """Writes a random model of a kind and returns it: `"tied"`, `"untied"`, `"moe"`, `"window"`, whose first layer alone has full
    attention, or `"deep"`, of five layers."""
    torch.manual_seed(len(kind))
    if kind == "moe":
        model: PreTrainedModel = Qwen3MoeForCausalLM(Qwen3MoeConfig(**_SHAPE, **_EXPERTS))
    elif kind == "window":
        model = Qwen3ForCausalLM(Qwen3Config(**_SHAPE, **_WINDOW))
    elif kind == "deep":
        model = Qwen3ForCausalLM(Qwen3Config(**_SHAPE | {"num_hidden_layers": 5}))
    else:
        model = Qwen3ForCausalLM(Qwen3Config(**_SHAPE, tie_word_embeddings=kind == "tied"))
    model.eval().save_pretrained(folder)
    return model


def write_noisy_model(folder: Path, other: Path) -> None:
    """Writes nearly the model of `folder`: its likeliest ids often are those of that one, and often are not."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        weight = model.model.norm.weight
        weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(2)), alpha=0.25)
    model.save_pretrained(other)


class TextRecorder:
    """A sink for one text request."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.reason = ""

    def __call__(self, output: EngineOutput) -> None:
        if isinstance(output, StageOutput):
            assert isinstance(output.meta, GeneratedTokens)
            self.tokens.extend(output.meta.ids)
        elif isinstance(output, StageFinished):
            self.reason = output.reason
        elif isinstance(output, RequestFailed) and output.error is not GIVEN_UP:
            raise output.error


class TextEngine(TickedEngine):
    """An engine of the text family."""

    run = TickedEngine.run_to_end

    def __init__(
        self,
        folder: Path,
        overrides: Mapping[str, object] | None = None,
        device: Device | None = None,
        **options: Any,
    ) -> None:
        self.plugins = plugins_of("ar", "local", "text")
        super().__init__(folder, self.plugins, overrides, device, **options)

    def submit(self, request_id: str, ids: Sequence[int], **sampling: Any) -> TextRecorder:
        recorder = TextRecorder()
        inputs = {"text": [Payload(plain_prompt(ids))]}
        asked = {"text": SamplingParams(**sampling)}
        self.engine.submit(EngineRequest(request_id, frozenset({"text"}), inputs, sampling=asked), recorder)
        return recorder


# What transformers answers for a tiny text checkpoint.

PROMPTS = [[(31 * index + 11 * place + place * place) % VOCAB for place in range(1 + 6 * index)] for index in range(8)]
TOKENS = 16


class TextReference:
    """A checkpoint folder, the transformers model in it, and what that model answers, alone."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder = folder
        self.model: Any = write_text_model(folder, kind)

    def answer(self, index: int) -> list[int]:
        """Greedy tokens for a prompt of `PROMPTS`."""
        return greedy(self.model, PROMPTS[index])


def greedy(model: Any, prompt: Sequence[int]) -> list[int]:
    """`TOKENS` of them, by transformers' `generate`."""
    ids = torch.tensor([prompt])
    ends: dict[str, Any] = {"eos_token_id": None, "pad_token_id": VOCAB}
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, do_sample=False, **ends)
    tokens: list[int] = out[0, len(prompt) :].tolist()
    return tokens


# A tiny Qwen3 checkpoint with a tokenizer, for what only a whole chat shows.

END = "<|im_end|>"


def write_chat_model(folder: Path, layers: int = 2) -> Path:
    """Writes a random model whose text is mostly words and sometimes ends; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = write_tokenizer(folder, 1024)
    torch.manual_seed(3)
    config = Qwen3Config(
        # As published ones do, the model has more ids than the tokenizer.
        vocab_size=-(-len(tokenizer) // 64) * 64 + 64,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=1024,
        initializer_range=0.2,
    )
    Qwen3ForCausalLM(config).eval().save_pretrained(folder)
    ends = {"eos_token_id": tokenizer.convert_tokens_to_ids(END), "do_sample": True, "temperature": 1.0, "top_k": 0}
    (folder / "generation_config.json").write_text(json.dumps(ends))
    return folder
