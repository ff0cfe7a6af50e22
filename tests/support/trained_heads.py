"""A small stage, and heads that learned some of its texts, so that their drafts often are right, and often are not."""

import functools
import json
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import Qwen3ForCausalLM

from omni_ar.drafters import DraftSetup, ModelDrafter
from omni_ar.drafters.eagle3 import Eagle3Drafter
from omni_ar.drafters.mtp import MtpDrafter
from tests.support.tiny_heads import Eagle3Reference, MtpReference, add_mtp, eagle3_head, setup_of, write_stage

KINDS = ("eagle3", "mtp")
MOST, STEPS = 24, {"eagle3": 45, "mtp": 20}
PROMPTS = (
    [1, 2, 3, 4, 1, 2, 3, 4, 1, 2],
    [5, 6, 7],
    [8, 9, 10, 8, 9, 10, 8],
    [3] * 9,
    [2],
    [5, 6, 7, 11, 12, 13, 14, 15, 16],
)


@dataclass
class Trained:
    """A stage and a head that often is right. folder: of the stage. texts: prompts with their greedy outputs. states: of each text,
    those it reads."""

    folder: Path
    setup: DraftSetup
    reference: Eagle3Reference | MtpReference
    args: dict[str, Any]
    texts: list[list[int]]
    states: list[Tensor]

    def drafter(self, drafts: int) -> ModelDrafter:
        kind = Eagle3Drafter if isinstance(self.reference, Eagle3Reference) else MtpDrafter
        with torch.inference_mode():
            return kind(self.args, replace(self.setup, drafts=drafts))

    def drafts(self, text: int, known: int, count: int) -> list[int]:
        """Behind the first `known` tokens of a text, everything recomputed."""
        ids, reference = self.texts[text][1:known], self.reference
        features_TD = reference.features(self.states[text][: known - 1])
        made: list[int] = []
        for _ in range(count):
            hidden_D = reference.hidden(torch.tensor(ids + made), features_TD)[-1]
            made.append(reference.likeliest(hidden_D))
            features_TD = torch.cat((features_TD, hidden_D[None]))
        return made

    def counts(self, text: int, drafts: int, positions: int = 1000) -> tuple[int, int]:
        """Verified and accepted drafts of a request alone. positions: of the head; it drafts from no entry behind them."""
        ids, start = self.texts[text], len(PROMPTS[text])
        made, verified, accepted = 1, 0, 0
        while made < MOST:
            entries = start + made - 1
            count = min(drafts, MOST - made - 1, max(0, positions - entries + 1))
            guesses = self.drafts(text, start + made, count) if count else []
            true = ids[start + made :]
            matched = next((at for at, guess in enumerate(guesses) if guess != true[at]), count)
            verified, accepted, made = verified + count, accepted + matched, made + matched + 1
        return verified, accepted


@functools.cache
def trained(kind: str) -> Trained:
    """The head learns the texts by heart, not quite."""
    made = TemporaryDirectory()
    _folders.append(made)
    folder = Path(made.name)
    stage = write_stage(folder / "stage", 1, layers=8, hidden_size=48, tie_word_embeddings=False)
    published = Qwen3ForCausalLM.from_pretrained(stage).eval()
    texts, states = [], []
    with torch.no_grad():
        for prompt in PROMPTS:
            ends: dict[str, Any] = {"eos_token_id": None, "pad_token_id": 0, "do_sample": False}
            ids = published.generate(torch.tensor([prompt]), max_new_tokens=MOST, **ends)
            found = published(ids, output_hidden_states=True).hidden_states
            texts.append(ids[0].tolist())
            states.append(torch.cat([found[layer][0] for layer in ((2, 4, 5) if kind == "eagle3" else (8,))], 1))
    weights = load_file(stage / "model.safetensors")
    embedding_VD, output_VD = weights["model.embed_tokens.weight"], weights["lm_head.weight"]
    args: dict[str, Any] = {}
    if kind == "eagle3":
        head = eagle3_head(stage, draft_size=89)
        learned = head.weights
        reference: Any = Eagle3Reference(head, embedding_VD, learned["lm_head.weight"])
    else:
        learned = add_mtp(stage)
        reference = MtpReference(learned, json.loads((stage / "config.json").read_text()), embedding_VD, output_VD)
    _train(reference, learned, texts, states, STEPS[kind])
    if kind == "eagle3":
        args["model"] = str(head.write(folder / "head"))
    else:
        save_file(weights | {f"mtp.{name}": each for name, each in learned.items()}, stage / "model.safetensors")
    return Trained(stage, setup_of(stage), reference, args, texts, states)


def _train(
    reference: Any, weights: dict[str, Tensor], texts: list[list[int]], states: list[Tensor], steps: int
) -> None:
    floats = [each.requires_grad_() for each in weights.values() if each.is_floating_point()]
    optimizer = torch.optim.Adam(floats, lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        for ids, states_TX in zip(texts, states, strict=True):
            hidden_TD = reference.hidden(torch.tensor(ids[1:]), reference.features(states_TX[:-1]))
            later_TD = reference.hidden(torch.tensor(ids[2:]), hidden_TD[:-1])
            loss = reference.loss(hidden_TD[:-1], torch.tensor(ids[2:]))
            (loss + reference.loss(later_TD[:-1], torch.tensor(ids[3:]))).backward()
        optimizer.step()
    for each in floats:
        each.requires_grad_(False)


_folders: list[TemporaryDirectory[str]] = []
"""They exist until the tests end."""
