"""Tiny Qwen3 checkpoints, and an engine over one."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from omni.checkpoint import Checkpoint
from omni.config import Layer
from omni.device import Device
from omni.device.cpu import CpuDevice
from omni.engine import (
    Engine,
    EngineOptions,
    EngineOutput,
    EngineRequest,
    RequestFailed,
    StageFinished,
    StageOutput,
    build_engine,
    resolve_pipeline,
)
from omni.errors import StageError
from omni.payload import GeneratedTokens, Payload
from omni.plugin.manager import load_plugins
from omni.sampling import SamplingParams
from omni_qwen3_omni.tiny.tokenizer import write_tokenizer
from tests.support.ar_driver import plain_prompt
from tests.support.entry_points import own_entry_points

VOCAB = 211
LEFT = StageError("request", "being tested", "it was given up")
"""The error of requests that a test gave up."""
_SHAPE = {
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
_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "mlp_only_layers": [1]}


def write_text_model(folder: Path, kind: str) -> PreTrainedModel:
    """Writes a random model of a kind (`"tied"`, `"untied"`, `"moe"`) and returns it."""
    torch.manual_seed(len(kind))
    if kind == "moe":
        model: PreTrainedModel = Qwen3MoeForCausalLM(Qwen3MoeConfig(**_SHAPE, **_EXPERTS))
    else:
        model = Qwen3ForCausalLM(Qwen3Config(**_SHAPE, tie_word_embeddings=kind == "tied"))
    model.eval().save_pretrained(folder)
    return model


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
        elif isinstance(output, RequestFailed) and output.error is not LEFT:
            raise output.error


class TextEngine:
    """An engine of the text family, ticked by the test."""

    def __init__(
        self,
        folder: Path,
        overrides: Mapping[str, object] | None = None,
        device: Device | None = None,
        memory_bytes: int | None = None,
        graphs: bool | None = None,
    ) -> None:
        self.plugins = load_plugins(own_entry_points("ar", "local", "text"))
        checkpoint = Checkpoint(folder)
        self.plan = resolve_pipeline(checkpoint, self.plugins, [Layer("test", overrides or {})])
        options = EngineOptions(dtype="float32", memory_bytes=memory_bytes, graphs=graphs)
        self.engine: Engine = build_engine(self.plan, checkpoint, self.plugins, device or CpuDevice(), options)

    def submit(self, request_id: str, ids: Sequence[int], **sampling: object) -> TextRecorder:
        recorder = TextRecorder()
        inputs = {"text": [Payload(plain_prompt(ids))]}
        asked = {"text": SamplingParams(**sampling)}
        self.engine.submit(EngineRequest(request_id, frozenset({"text"}), inputs, sampling=asked), recorder)
        return recorder

    def leave(self, request_id: str) -> None:
        """Gives a request up; its recorder keeps what came before."""
        self.engine.abort(request_id, LEFT)

    def tick(self) -> bool:
        with torch.inference_mode():
            return self.engine.tick()

    def run(self) -> None:
        while not self.engine.idle:
            self.tick()


# What transformers answers for a tiny text checkpoint.

PROMPTS = [[(31 * index + 11 * place + place * place) % VOCAB for place in range(1 + 6 * index)] for index in range(8)]
TOKENS = 16
PENALTY = 1.3


class TextReference:
    """A checkpoint folder, the transformers model in it, and what that model answers, alone."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder = folder
        self.model: PreTrainedModel = write_text_model(folder, kind)
        self._answers: dict[tuple[int, float], list[int]] = {}

    def answer(self, index: int, penalty: float) -> list[int]:
        if (index, penalty) not in self._answers:
            self._answers[index, penalty] = self._generate(PROMPTS[index], penalty)
        return self._answers[index, penalty]

    def _generate(self, prompt: Sequence[int], penalty: float) -> list[int]:
        ids = torch.tensor([prompt])
        out = self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=TOKENS,
            do_sample=False,
            repetition_penalty=penalty,
            eos_token_id=None,
            pad_token_id=VOCAB,
        )
        tokens: list[int] = out[0, len(prompt) :].tolist()
        return tokens


# A tiny Qwen3 checkpoint with a tokenizer, for what only a whole chat shows.

END = "<|im_end|>"


def write_chat_model(folder: Path) -> Path:
    """Writes a random model that says anything, mostly words, and ends now and then; gives the folder back."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = write_tokenizer(folder, 1024)
    torch.manual_seed(3)
    config = Qwen3Config(
        # As published ones do, the model has more ids than the tokenizer.
        vocab_size=-(-len(tokenizer) // 64) * 64 + 64,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=2,
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
