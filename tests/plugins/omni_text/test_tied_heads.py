"""Output matrices that config.json ties to the embedding table: the file's own matrix takes precedence, as in transformers."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tests.support.tiny_text import PROMPTS, TOKENS, TextEngine, greedy, write_text_model

EMBEDDING, OUTPUT = "model.embed_tokens.weight", "lm_head.weight"


def our_answer(folder: Path, prompt: list[int]) -> list[int]:
    stage = TextEngine(folder)
    recorder = stage.submit("r", prompt, max_tokens=TOKENS)
    stage.run()
    return recorder.tokens


@pytest.mark.parametrize("held", ["the embedding", "the output", "both alike", "both, and they differ"])
def test_a_tied_checkpoint_gives_transformers_tokens_with_any_head(held: str, tmp_path: Path) -> None:
    write_text_model(tmp_path, "tied")
    file = tmp_path / "model.safetensors"
    plain = our_answer(tmp_path, PROMPTS[5])
    weights = load_file(file)
    table = weights.pop(EMBEDDING)
    other = table[torch.randperm(len(table), generator=torch.Generator().manual_seed(1))].contiguous()
    weights |= {
        "the embedding": {EMBEDDING: table},
        "the output": {OUTPUT: table},
        "both alike": {EMBEDDING: table, OUTPUT: table.clone()},
        "both, and they differ": {EMBEDDING: table, OUTPUT: other},
    }[held]
    save_file(weights, file, {"format": "pt"})
    ours = our_answer(tmp_path, PROMPTS[5])
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    assert ours == greedy(model, PROMPTS[5])
    assert (ours == plain) == ("differ" not in held)
