"""What transformers answers for a tiny text checkpoint."""

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import PreTrainedModel

from support.tiny_text import VOCAB, write_text_model

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
