"""A small text model and a small talker that layer ranges can divide (pipeline parallelism)."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from omni.checkpoint import Checkpoint, load_module, stacked_destinations
from omni.parallel import Communicator
from omni.plugin import DrafterEntry
from omni_ar.drafters import DraftSetup, ModelDrafter
from omni_ar.drafters.draft_model import ArDraftModel
from omni_ar.layers import DecoderConfig
from omni_ar.layers.decoder import DecoderLayers
from omni_ar.layers.parallel import LayerRange, partitioned
from omni_ar.layers.text_model import TextModel, decoder_shape
from omni_ar.model import ArModel, ArShape, Batch, CodecModel, Codes, DrawCode, NextTokens, PromptTokens

Model = TypeVar("Model", bound=ArModel)

VOCABULARY, WIDTH, LAYERS = 61, 24, 4
CONFIG = DecoderConfig(
    width=WIDTH,
    num_layers=LAYERS,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    mlp_width=32,
    max_positions=96,
    rope_theta=1e4,
    rms_norm_eps=1e-6,
)


class Deep(TextModel):
    """fails: a phase of the model, and the number of its call that fails."""

    def __init__(self, fails: tuple[str, int] | None = None) -> None:
        super().__init__(CONFIG, VOCABULARY, tied=False)
        self._fails = fails
        self._calls = 0
        self.requires_grad_(False)

    def _check(self, phase: str) -> None:
        if self._fails is not None and self._fails[0] == phase:
            self._calls += 1
            if self._calls == self._fails[1]:
                raise ValueError("broken")

    def embed_next(self, step: NextTokens) -> Tensor:
        self._check("embed")
        return super().embed_next(step)

    def forward(self, x_TD: Tensor, batch: Batch) -> Tensor:
        self._check("before")
        hidden_TD = super().forward(x_TD, batch)
        self._check("behind")
        return hidden_TD

    def logits(self, hidden_RD: Tensor) -> Tensor:
        self._check("logits")
        return super().logits(hidden_RD)


class DeepConditioned(Deep):
    """A text id and a vector condition each step."""

    texts, heard = 23, 8

    def __init__(self) -> None:
        super().__init__()
        self.text_table = nn.Parameter(torch.empty(self.texts, WIDTH))
        self.hearing = nn.Parameter(torch.empty(WIDTH, self.heard))
        self.requires_grad_(False)

    @property
    def shape(self) -> ArShape:
        return replace(super().shape, step_columns=("text",), step_width=self.heard)

    def embed_next(self, step: NextTokens) -> Tensor:
        heard_RD = torch.tanh(step.vectors_RE @ self.hearing.T)
        return super().embed_next(step) + self.text_table[step.columns_SR[0]] + heard_RD


class DeepTalker(CodecModel):
    """A prompt token is a text id and a code, as in `SmallCodec`."""

    num_groups = 3
    next_width = WIDTH
    codes, texts = 37, 23

    def __init__(self) -> None:
        super().__init__()
        self.text_table = nn.Parameter(torch.empty(self.texts, WIDTH))
        self.code_tables = nn.ParameterList(torch.empty(self.codes, WIDTH) for _ in range(self.num_groups))
        self.decoder = DecoderLayers(CONFIG)
        self.heads = nn.ParameterList(torch.empty(self.codes, WIDTH) for _ in range(self.num_groups))
        self.requires_grad_(False)

    @property
    def shape(self) -> ArShape:
        return decoder_shape(CONFIG, self.codes, prompt_columns=("text", "code"), step_columns=("text",))

    def embed_prompt(self, prompt: PromptTokens) -> Tensor:
        texts_TD, codes_TD = self.text_table[prompt.columns_CT[0]], self.code_tables[0][prompt.columns_CT[1]]
        return texts_TD + torch.as_tensor(codes_TD)

    def embed_next(self, step: NextTokens) -> Tensor:
        return step.codes_RD + self.text_table[step.columns_SR[0]]

    def forward(self, x_TD: Tensor, batch: Batch) -> Tensor:
        hidden_TD: Tensor = self.decoder(x_TD, batch)
        return hidden_TD

    def logits(self, hidden_RD: Tensor) -> Tensor:
        logits_RV: Tensor = hidden_RD @ self.heads[0].T
        return logits_RV

    def predict_codes(self, hidden_RD: Tensor, code0_R: Tensor, draw: DrawCode) -> Codes:
        frame, state_RD = [code0_R], hidden_RD
        for group in range(1, self.num_groups):
            state_RD = torch.tanh(state_RD + self.code_tables[group - 1][frame[-1]])
            frame.append(draw(state_RD @ self.heads[group].T, group))
        codes_RG = torch.stack(frame, 1)
        return Codes(codes_RG, self.embed_codes(codes_RG))

    def embed_codes(self, codes_RG: Tensor) -> Tensor:
        return torch.stack([table[codes_RG[:, group]] for group, table in enumerate(self.code_tables)], 1).sum(1)


def filled(model: Model) -> Model:
    """With weights that depend on their names alone."""
    for name, parameter in model.named_parameters():
        generator = torch.Generator().manual_seed(sum(map(ord, name)) + len(name))
        nn.init.normal_(parameter, 1.0 if parameter.dim() == 1 else 0.0, 0.35, generator)
    return model


def in_range(position: int, size: int, layers: tuple[int, ...] = (), fails: tuple[str, int] | None = None) -> Deep:
    return range_of(lambda: Deep(fails), position, size, layers)


def range_of(
    make: Callable[[], Model],
    position: int,
    size: int,
    layers: tuple[int, ...] = (),
    communicator: Communicator | None = None,
) -> Model:
    """A layer range of the model that `make` gives whole. communicator: of the ranks that each layer is cut across."""
    published = None if communicator is None else _published(make)
    with partitioned(communicator, LayerRange("text", position, size, layers)):
        model = make()
        if published is None:
            filled(model)
        else:
            load_module(model, Checkpoint(published))
        shape = model.shape
    model.__class__ = type("Range", (type(model),), {"shape": shape})
    return model


@cache
def _published(make: Callable[[], Model]) -> Path:
    """A folder with the checkpoint of the whole model."""
    folder = TemporaryDirectory()
    _folders.append(folder)
    path = Path(folder.name)
    (path / "config.json").write_text("{}")
    module = filled(make())
    stacked, parameters = stacked_destinations(module), dict(module.named_parameters())
    weights = {name: parameters[place.parameter][place.index] for name, place in stacked.items()}
    weights |= {name: parameters[name] for name in parameters.keys() - {each.parameter for each in stacked.values()}}
    save_file({name: tensor.detach().clone() for name, tensor in weights.items()}, path / "model.safetensors")
    return path


_folders: list[TemporaryDirectory[str]] = []
"""They exist until the tests end."""


DEEP = DrafterEntry(name="deep", drafter="tests.support.deep_models:deep_drafter")


def deep_drafter(args: Mapping[str, float], setup: DraftSetup) -> ModelDrafter:
    """args: `noise`, of its output matrix; 0 for the stage's own model."""
    model, generator = filled(Deep()), torch.Generator().manual_seed(5)
    weight = model.get_parameter("lm_head.weight")
    weight.add_(torch.randn(weight.shape, generator=generator), alpha=args["noise"])
    return ModelDrafter(ArDraftModel(model, setup.vocab_size), setup.drafts)
