"""Writes a checkpoint: what follows what in one sentence."""

import json
from itertools import pairwise
from pathlib import Path

import torch
from safetensors.torch import save_file

from omni_bigram.model import BYTES

TEXT = "The next token never waits for anything but the token before it.\n"


def write(directory: Path, *, seed: int) -> None:
    """The sentence, counted; `seed` only breaks ties between bytes that follow equally often."""
    counts = torch.rand(BYTES, BYTES, generator=torch.Generator().manual_seed(seed)) * 1e-4
    for first, second in pairwise(TEXT.encode()):
        counts[first, second] += 1
    settings = {"do_sample": True, "temperature": 1.0, "top_k": 0, "eos_token_id": ord("\n")}
    directory.mkdir(parents=True, exist_ok=True)
    save_file({"bigrams": counts.log()}, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps({"model_type": "bigram"}))
    (directory / "generation_config.json").write_text(json.dumps(settings))
