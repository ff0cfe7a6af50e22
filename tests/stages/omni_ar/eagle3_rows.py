"""Drafters of tiny EAGLE-3 heads, and rows that they draft for."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from omni_ar.drafters import DraftSetup
from omni_ar.drafters.eagle3 import Eagle3Drafter
from tests.stages.omni_ar.head_rows import HeadRows
from tests.support.tiny_heads import Eagle3Reference, TinyHead


def drafter_of(folder: Path, setup: DraftSetup, **more: Any) -> Eagle3Drafter:
    with torch.inference_mode():
        return Eagle3Drafter({"model": str(folder), **more}, setup)


def rows_of(stage: Path, head: TinyHead, setup: DraftSetup, drafter: Eagle3Drafter, seed: int = 0) -> HeadRows:
    weights = load_file(stage / "model.safetensors")
    embedding_VD = head.weights.get("embed_tokens.weight", weights["model.embed_tokens.weight"])
    output_VD = head.weights.get("lm_head.weight")
    if output_VD is None:
        output_VD = embedding_VD if head.config["tie_word_embeddings"] else weights["lm_head.weight"]
    # Ids that pad the stage's vocabulary further than the head's.
    further = max(setup.vocab_size - embedding_VD.shape[0], 0)
    embedding_VD = torch.cat((embedding_VD, embedding_VD[-1:].expand(further, -1)))
    reference = Eagle3Reference(head, embedding_VD, output_VD)
    width = head.weights["fc.weight"].shape[1]
    return HeadRows(drafter, reference, vocab=setup.vocab_size, width=width, drafts=setup.drafts, seed=seed)
