"""Layers that are divided by measured time."""

import gc
import os
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import omni_text.pipeline
from omni.checkpoint import Checkpoint
from omni.device import CpuDevice
from omni.ipc import Channel
from omni.parallel import RankLayout, silent_ranks
from omni.parallel.rendezvous import RankResources, open_ranks
from omni.stage import StageContext
from omni_ar import kind
from omni_ar.kernels.norm import Delta
from omni_ar.kind import build_rank_model
from omni_ar.layer_ranges import balanced_layers
from omni_ar.layers.decoder import DecoderLayer, decoder_of
from omni_ar.layers.parallel import LayerRange
from omni_ar.layers.text_model import TextModel
from omni_ar.model import ArModel
from omni_ar.options import ArOptions
from omni_ar.run import profile
from tests.support.tiers import SLOW, few
from tests.support.tiny_text import write_text_model


@pytest.mark.parametrize(
    ("num_layers", "layers", "times", "expected"),
    [
        (48, (24, 24), (24.0, 24.0), (24, 24)),
        (48, (24, 24), (24.0, 28.0), (26, 22)),
        (48, (24, 24), (2.4, 4.8), (37, 11)),
        # Half a layer longer: two hundredths are not in its time.
        (48, (24, 24), (6.67, 6.80), (25, 23)),
        # Beyond the layers, the last range takes longer than all of them.
        (48, (24, 24), (24.0, 90.0), (47, 1)),
        # Faster than its layers alone would be: measured imprecisely.
        (48, (24, 24), (24.0, 23.0), (24, 24)),
        (36, (12, 12, 12), (12.0, 12.0, 18.0), (14, 14, 8)),
        (5, (2, 2, 1), (2.0, 2.2, 3.1), (2, 2, 1)),
        (7, (3, 2, 2), (3.0, 2.0, 5.0), (3, 3, 1)),
    ],
)
def test_layer_ranges_take_the_same_time(
    num_layers: int, layers: tuple[int, ...], times: tuple[float, ...], expected: tuple[int, ...]
) -> None:
    assert balanced_layers(num_layers, layers, times) == expected


def context_of(folder: Path, **more: object) -> StageContext:
    checkpoint = Checkpoint(folder)
    stage = omni_text.pipeline.pipeline(checkpoint).stage("text")
    options = type(stage.options)(pipeline_layers="measured", max_num_seqs=2, max_model_len=16)
    return StageContext(
        stage=stage,
        options=options,
        checkpoint=checkpoint,
        device=CpuDevice(),
        dtype=torch.float32,
        load_format="auto",
        graphs=True,
        **more,  # type: ignore[arg-type]
    )


def built_ranges(folder: Path) -> list[ArModel]:
    """Of two ranks, the last layer range first."""
    store = os.memfd_create("test-ranks", os.MFD_CLOEXEC)
    ends = [RankResources(store=os.dup(store)) for _ in range(2)]
    os.close(store)
    ends[0].sockets[1], ends[1].sockets[0] = Channel.pair()

    def built(rank: int) -> ArModel:
        ranks = open_ranks(rank, RankLayout(pipeline=2), torch.device("cpu"), ends[rank])
        try:
            with torch.inference_mode():
                return build_rank_model(context_of(folder, ranks=ranks))
        finally:
            ranks.close()

    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(built, range(2)))


@pytest.mark.parametrize(("slow", "expected"), few(1, [("logits", [4, 1]), ("layers", [3, 2])], SLOW))
def test_ranks_measure_their_ranges_and_divide_the_layers(
    slow: str, expected: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layers, or logits, that take far longer than everything else."""
    whole = write_text_model(tmp_path, "deep")
    owner, name = (TextModel, "logits") if slow == "logits" else (DecoderLayer, "forward")
    real = getattr(owner, name)

    def slowly(self: object, *arguments: Tensor) -> Tensor:
        time.sleep(0.02)
        result: Tensor = real(self, *arguments)
        return result

    monkeypatch.setattr(owner, name, slowly)
    models = built_ranges(tmp_path)
    last, first = (decoder_of(model).held for model in models)
    assert [len(first), len(last)] == expected
    assert (first.start, first.stop, last.stop) == (0, last.start, 5)
    # The weights are those of the checkpoint, not the random ones of the trial.
    for each in models:
        table = each.get_parameter("embed_tokens.weight")
        assert torch.equal(table, whole.get_parameter("model.embed_tokens.weight"))


def test_the_trial_is_freed_before_weights_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A range and its trial may not fit together, and the collector of cycles does not run when memory is short."""
    trials: dict[int, weakref.ref[ArModel]] = {}
    left: list[ArModel | None] = []
    build = kind._build

    def watched(context: StageContext, held: LayerRange | None) -> ArModel:
        rank = threading.get_ident()
        if context.load_format != "dummy":
            left.append(trials[rank]())
            return build(context, held)
        model = build(context, held)
        trials[rank] = weakref.ref(model)
        return model

    write_text_model(tmp_path, "deep")
    monkeypatch.setattr(kind, "_build", watched)
    gc.disable()
    try:
        built_ranges(tmp_path)
    finally:
        gc.enable()
    assert left == [None, None]


@pytest.mark.parametrize(("device", "expected"), [("cuda", "measured"), ("cpu", ())])
def test_layers_are_divided_by_time_on_a_cuda_device(device: str, expected: object, tmp_path: Path) -> None:
    write_text_model(tmp_path, "deep")
    context = context_of(tmp_path)
    stands_in = SimpleNamespace(torch_device=torch.device(device))
    chosen = [
        kind._pipeline_layers(replace(context, device=stands_in, options=options))  # type: ignore[arg-type]
        for options in (ArOptions(), ArOptions(pipeline_layers=(2, 3)), ArOptions(pipeline_layers="measured"))
    ]
    assert chosen == [expected, (2, 3), "measured"]


def test_a_rank_alone_is_not_measured(tmp_path: Path) -> None:
    """Its range, for shapes and footprints, is one of equal numbers of layers."""
    write_text_model(tmp_path, "deep")
    model = build_rank_model(context_of(tmp_path, ranks=silent_ranks(0, RankLayout(pipeline=2))))
    assert decoder_of(model).held == range(3, 5)


def test_rows_of_timed_steps_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal rows would choose the same experts, so that a layer seems faster than it is."""
    write_text_model(tmp_path, "deep")
    equal: list[bool] = []
    real = DecoderLayer.forward

    def watched(self: DecoderLayer, x_TD: Tensor, *arguments: Any) -> tuple[Tensor, Delta]:
        if x_TD.device.type != "meta":
            equal.append(torch.equal(x_TD[0], x_TD[1]))
        return real(self, x_TD, *arguments)

    monkeypatch.setattr(DecoderLayer, "forward", watched)
    monkeypatch.setattr(profile, "_TIMINGS", 3)
    built_ranges(tmp_path)
    assert equal
    assert not any(equal)
