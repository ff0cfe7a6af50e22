"""Modules that hold a part of published weights: reads, loaded parts, and refusals."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor, nn

from omni.checkpoint import Checkpoint, Cut, Destination, StackedWeights, fill_dummy, load_module, stream
from omni.errors import CheckpointError
from tests.support.reference import temporary_folder


class Parts(nn.Module, StackedWeights):
    """A parameter for each weight: a part of it, or all."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], cuts: Mapping[str, Cut], dtype: torch.dtype) -> None:
        super().__init__()
        self.cuts = cuts
        for name, shape in shapes.items():
            held = list(shape)
            if name in cuts:
                held[cuts[name].dim] = cuts[name].length
            self.register_parameter(name, nn.Parameter(torch.full(held, math.nan, dtype=dtype)))

    def stacked_weights(self, name: str) -> dict[str, Destination]:
        return {weight: Destination(weight, cut=cut) for weight, cut in self.cuts.items()}


def part_of(weight: Tensor, cut: Cut | None) -> Tensor:
    """The part of a weight that a cut holds, with zeros behind it."""
    if cut is None:
        return weight
    return torch.cat([weight, torch.zeros_like(weight), torch.zeros_like(weight)], cut.dim).narrow(
        cut.dim, cut.start, cut.length
    )


def saved(folder: Path, weights: dict[str, Tensor]) -> Checkpoint:
    (folder / "config.json").write_text("{}")
    save_file(weights, folder / "model.safetensors")
    return Checkpoint(folder)


@st.composite
def cut_weights(draw: st.DrawFn) -> tuple[dict[str, tuple[int, ...]], dict[str, Cut]]:
    shapes: dict[str, tuple[int, ...]] = {}
    cuts: dict[str, Cut] = {}
    for index in range(draw(st.integers(1, 5))):
        shape = shapes[f"w{index}"] = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
        if draw(st.booleans()):
            dim = draw(st.integers(0, len(shape) - 1))
            start = draw(st.integers(0, shape[dim]))
            cuts[f"w{index}"] = Cut(dim, start, start + draw(st.integers(1, shape[dim])), shape[dim])
    return shapes, cuts


@given(
    drawn=cut_weights(),
    window=st.sampled_from([8, 32, 100, 16 << 20]),
    short=st.sampled_from([0, 16, 1 << 20]),
    published=st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
    held=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_any_part_of_any_weight_arrives(
    drawn: tuple[dict[str, tuple[int, ...]], dict[str, Cut]],
    window: int,
    short: int,
    published: torch.dtype,
    held: torch.dtype,
) -> None:
    shapes, cuts = drawn
    generator = torch.Generator().manual_seed(len(shapes))
    weights = {name: torch.randn(shape, generator=generator).to(published) for name, shape in shapes.items()}
    module = Parts(shapes, cuts, held)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "WINDOW_BYTES", window)
        patch.setattr(stream, "_SHORT_BYTES", short)
        load_module(module, saved(temporary_folder(), weights))
    for name, weight in weights.items():
        assert torch.equal(module.get_parameter(name), part_of(weight, cuts.get(name)).to(held)), name


def test_of_rows_only_their_bytes_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    real = stream._read

    def counted(extent, slot):
        read.append(extent.stop - extent.start)
        real(extent, slot)

    monkeypatch.setattr(stream, "_read", counted)
    shapes, cuts = {"weight": (64, 10)}, {"weight": Cut(0, 16, 32, 64)}
    load_module(Parts(shapes, cuts, torch.float32), saved(tmp_path, {"weight": torch.randn(64, 10)}))
    assert read == [16 * 10 * 4]


def test_columns_are_read_in_few_pieces_and_long_ones_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = {f"w{index}": torch.randn(500, 8) for index in range(4)}
    checkpoint, cuts = saved(tmp_path, weights), {name: Cut(1, 2, 4, 8) for name in weights}
    for short, extents, size in ((1 << 20, 1, 4 * 500 * 8 * 4), (8, 4 * 500, 4 * 500 * 2 * 4)):
        monkeypatch.setattr(stream, "_SHORT_BYTES", short)
        spans = [span for _, span in checkpoint.spans(weights)]
        pieces = [
            piece
            for span, cut in zip(spans, cuts.values(), strict=True)
            for piece in stream._pieces(replace(span, cut=cut), torch.empty(1000))
        ]
        found = list(stream._extents(pieces))
        assert len(found) == extents
        assert sum(extent.stop - extent.start for extent in found) == size


def test_a_wrong_shape_is_named_as_published(tmp_path: Path) -> None:
    module = Parts({"weight": (8, 6)}, {"weight": Cut(1, 3, 6, 6)}, torch.float32)
    checkpoint = saved(tmp_path, {"weight": torch.zeros(8, 3)})
    with pytest.raises(CheckpointError, match=r"^weight: wrong tensor shape: expected \(8, 6\), found \(8, 3\)"):
        load_module(module, checkpoint)


def test_a_parameter_that_does_not_hold_its_part_is_refused(tmp_path: Path) -> None:
    module = Parts({"weight": (8, 6)}, {"weight": Cut(1, 3, 6, 6)}, torch.float32)
    module.cuts = {"weight": Cut(1, 2, 6, 6)}
    with pytest.raises(ValueError, match=r"a parameter of shape \(8, 3\) does not hold Cut\(dim=1, start=2"):
        load_module(module, saved(tmp_path, {"weight": torch.zeros(8, 6)}))


def test_a_missing_weight_is_named(tmp_path: Path) -> None:
    module = Parts({"a": (8, 6), "b": (8, 6)}, {"b": Cut(0, 0, 4, 8)}, torch.float32)
    with pytest.raises(CheckpointError, match="no weights for 1 parameters of the model: b "):
        load_module(module, saved(tmp_path, {"a": torch.zeros(8, 6)}))


def test_numbers_that_are_not_finite_are_found_by_the_rank_that_holds_them(tmp_path: Path) -> None:
    weights = {"a": torch.zeros(8, 6), "b": torch.zeros(8, 6)}
    weights["b"][2, 5] = math.inf
    checkpoint = saved(tmp_path, weights)
    for cut, holds in (
        (Cut(0, 0, 2, 8), False),
        (Cut(0, 2, 4, 8), True),
        (Cut(1, 0, 3, 6), False),
        (Cut(1, 3, 6, 6), True),
    ):
        # The part of the other weight is empty: its rows lie behind the end.
        module = Parts({"a": (8, 6), "b": (8, 6)}, {"a": Cut(0, 8, 12, 8), "b": cut}, torch.float32)
        if holds:
            with pytest.raises(CheckpointError, match=r"^b: holds numbers that are not finite"):
                load_module(module, checkpoint)
        else:
            load_module(module, checkpoint)


def test_a_part_on_the_meta_device_is_checked_only(tmp_path: Path) -> None:
    module = Parts({"weight": (8, 6)}, {"weight": Cut(1, 3, 6, 6)}, torch.float32).to("meta")
    load_module(module, saved(tmp_path, {"weight": torch.zeros(8, 6)}))


def test_random_weights_of_ranks_are_equal_where_they_are_whole() -> None:
    shapes = {"first": (8, 6), "cut": (8, 6), "last": (5, 4)}
    ranks = [Parts(shapes, {"cut": Cut(0, start, start + 4, 8)}, torch.float32) for start in (0, 4)]
    for rank in ranks:
        fill_dummy(rank, 3)
    one, other = (dict(rank.named_parameters()) for rank in ranks)
    assert [torch.equal(one[name], other[name]) for name in shapes] == [True, False, True]
    assert not torch.equal(one["first"].flatten()[:20], one["last"].flatten())


def test_random_weights_of_a_whole_module_come_from_one_generator() -> None:
    module, generator = Parts({"a": (8, 6), "b": (5, 4)}, {}, torch.float32), torch.Generator().manual_seed(3)
    fill_dummy(module, 3)
    for name in ("a", "b"):
        parameter = module.get_parameter(name)
        assert torch.equal(parameter, torch.empty_like(parameter).normal_(0.0, 0.02, generator=generator))
