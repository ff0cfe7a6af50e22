"""Stages with drafters whose layers are cut across ranks: tokens and acceptance are those of a whole stage, and ranks without the
last layer range hold no part of a drafter."""

import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from omni import Omni, SamplingParams
from omni.errors import CheckpointError
from omni.parallel import RankLayout
from omni.testing.ranks import thread_ranks
from omni_ar.drafters import ModelDrafter
from omni_ar.drafters.load import load_drafter
from omni_ar.kind import build_rank_model
from omni_ar.loaded import LoadedAr
from omni_ar.options import ArOptions
from omni_ar.plugin import omni_drafters
from tests.plugins.cut_stages import CutStages
from tests.support.plugins import plugins_of
from tests.support.tiers import SLOW, few
from tests.support.tiny_heads import add_mtp, setup_of
from tests.support.tiny_text import TextEngine, write_chat_model
from tests.support.trained_heads import KINDS, MOST, PROMPTS, trained

pytestmark = pytest.mark.thorough

PP2, PP3, BOTH = RankLayout(pipeline=2), RankLayout(pipeline=3), RankLayout(2, 2)


def answers(kind: str, change: Any, settings: Mapping[str, object]) -> tuple[list[list[int]], Mapping[str, int]]:
    given = {"block_size": 4, "max_num_seqs": len(PROMPTS), "max_model_len": 64, **settings}
    given |= {"drafter": kind, "drafter_args": trained(kind).args, "adaptive_drafts": False}
    overrides = {f"text.{name}": value for name, value in given.items()}
    engine = TextEngine(trained(kind).folder, overrides, change=change, graphs=True)
    recorders = [engine.submit(str(at), ids, max_tokens=MOST) for at, ids in enumerate(PROMPTS)]
    engine.run()
    return [each.tokens for each in recorders], engine.engine.counters()["text"]


CASES = [("eagle3", PP3), ("mtp", PP2), *((kind, layout) for kind in KINDS for layout in (PP2, PP3, BOTH))]


@pytest.mark.parametrize(("kind", "layout"), few(1, dict.fromkeys(CASES), SLOW), ids=str)
def test_tokens_and_counts_are_those_of_a_whole_stage(kind: str, layout: RankLayout) -> None:
    plain = [ids[len(prompt) :] for ids, prompt in zip(trained(kind).texts, PROMPTS, strict=True)]
    cut = CutStages(layout)
    tokens, counters = answers(kind, cut.change, {})
    assert tokens == plain
    counts = [trained(kind).counts(text, 3) for text in range(len(PROMPTS))]
    assert (counters["drafted_tokens"], counters["accepted_drafts"]) == tuple(map(sum, zip(*counts, strict=True)))
    cut.end()


def test_ranks_without_the_last_layers_hold_nothing_of_a_drafter() -> None:
    """Nor do they read its weights."""
    head, loaded = trained("eagle3"), []
    entries = {entry.name: entry for entry in omni_drafters()}
    options = ArOptions(block_size=4, max_num_seqs=2, max_model_len=64, drafter="eagle3", drafter_args=head.args)
    for ranks in thread_ranks(PP2):
        context = replace(setup_of(head.folder, ranks=ranks, drafters=entries).context, options=options)
        with torch.inference_mode():
            model = build_rank_model(context)
            plain = LoadedAr(
                replace(context, options=msgspec.structs.replace(options, drafter=None, drafter_args=None)), model
            )
            loaded.append((LoadedAr(context, model).footprint, plain.footprint))
    (last, of_last), (first, of_first) = loaded
    assert last.weights - of_last.weights == head.drafter(3).weight_bytes
    assert last.page_bytes > of_last.page_bytes
    assert (first.weights, first.page_bytes) == (of_first.weights, of_first.page_bytes)


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_without_the_last_layers_read_no_weights_of_a_drafter(kind: str, tmp_path: Path) -> None:
    """Those of the head are missing here."""
    head = trained(kind)
    folder, args = head.folder, dict(head.args)
    if kind == "eagle3":
        args["model"] = str(tmp_path / "head")
        shutil.copytree(head.args["model"], tmp_path / "head")
        (tmp_path / "head" / "model.safetensors").unlink()
    else:
        folder = shutil.copytree(head.folder, tmp_path / "stage")
        weights = load_file(folder / "model.safetensors")
        kept = {name: weight for name, weight in weights.items() if not name.startswith("mtp.")}
        save_file(kept, folder / "model.safetensors", {"format": "pt"})
    options = ArOptions(drafter=kind, drafter_args=args)
    entries = {entry.name: entry for entry in omni_drafters()}
    last, first = (replace(setup_of(folder, ranks=ranks, drafters=entries), drafts=3) for ranks in thread_ranks(PP2))
    drafter = load_drafter(replace(first.context, options=options), first.model, 64)
    assert isinstance(drafter, ModelDrafter)
    assert all(weight.is_meta for weight in drafter._model.parameters())
    with pytest.raises(CheckpointError, match=r"^text\.drafter"):
        load_drafter(replace(last.context, options=options), last.model, 64)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
@pytest.mark.parametrize(("drafter", "tensor"), [("mtp", 1), ("draft_model", 2)])
def test_processes_make_the_drafts_of_one(drafter: str, tensor: int, tmp_path: Path) -> None:
    """Over gloo. The head is right by chance alone, and the model, which is the stage's own, always."""
    folder = write_chat_model(tmp_path)
    add_mtp(folder)
    places = ",".join(f"cpu/{rank}" for rank in range(2 * tensor))
    cut = {"text.pipeline_parallel": 2, "text.tensor_parallel": tensor, "text.place": places}
    args = {"model": str(folder)} if drafter == "draft_model" else {}
    drafted = {"text.drafter": drafter, "text.drafter_args": args, "text.adaptive_drafts": False}
    found = []
    for settings in ({}, drafted, drafted | cut):
        with Omni(folder, device="cpu", plugins=plugins_of("ar", "local", "shm", "text"), overrides=settings) as omni:
            results = [omni.generate(text, stream=False, sampling=ASKED) for text in ("hello", "tell me more")]
            counts = omni.counters()["text"]
            found.append(([each.text for each in results], counts.get("drafted_tokens"), counts.get("accepted_drafts")))
    plain, alone, together = found
    assert plain[0] == alone[0] == together[0]
    assert alone[1:] == together[1:]
    assert alone[1] is not None
    assert alone[1] > 50
    assert drafter == "mtp" or alone[1] == alone[2]


ASKED = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
