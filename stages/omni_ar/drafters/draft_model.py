"""A whole model as a drafter: usually a smaller one of the same vocabulary."""

from torch import Tensor

from omni.checkpoint import Checkpoint
from omni.errors import ConfigError
from omni.stage import module_bytes
from omni_ar.drafters.base import CacheShape, DraftSetup
from omni_ar.drafters.model import DraftModel, ModelDrafter
from omni_ar.drafters.vocabulary import check_tables
from omni_ar.model import ArModel, Batch, CodecModel, NextTokens, PassWeights


class ArDraftModel(DraftModel):
    """An `ArModel` whose only inputs are token ids, with positions counted from 0."""

    def __init__(self, model: ArModel, vocab_size: int) -> None:
        """vocab_size: of the stage. Larger ids pad the vocabulary in some sizes of a family. They are never proposed."""
        super().__init__()
        self.model = model
        self._vocab_size = vocab_size

    @property
    def cache_shape(self) -> CacheShape:
        shape = self.model.shape
        return CacheShape(num_layers=shape.num_kv_layers, num_kv_heads=shape.num_kv_heads, head_dim=shape.head_dim)

    @property
    def pass_weights(self) -> PassWeights:
        return PassWeights(module_bytes(self.model), self.model.shape.num_kv_layers, self.model.shape.experts)

    def forward(self, ids_T: Tensor, features_TH: Tensor | None, batch: Batch) -> Tensor:
        # The stage may pad the vocabulary further than this model, and a request may have any of its ids.
        ids_T = ids_T.clamp(max=self.model.shape.vocab_size - 1)
        none_T0 = ids_T.new_empty((ids_T.shape[0], 0))
        hidden_TD: Tensor = self.model(self.model.embed_next(NextTokens(ids_T, none_T0.T, none_T0, none_T0)), batch)
        return hidden_TD

    def propose(self, hidden_RD: Tensor) -> Tensor:
        return self.model.logits(hidden_RD)[:, : self._vocab_size].argmax(-1)


def model_drafter(model: ArModel, checkpoint: Checkpoint, setup: DraftSetup) -> ModelDrafter:
    """Drafts of a model with weights loaded. checkpoint: the model's.

    Raises ConfigError, naming `drafter_args.model`, for a model that has other ids than the stage, or other inputs, or that is too
    short for the stage's requests.
    """
    shape, stage, path = model.shape, setup.context.stage.name, checkpoint.path
    field = f"{stage}.drafter_args.model"
    if isinstance(model, CodecModel) or shape.conditioned or len(shape.prompt_columns) > 1 or shape.position_axes > 1:
        raise ConfigError(field, f"{path} is not a plain model of text", "use a model of text")
    _check_vocabulary(field, checkpoint, shape.vocab_size, setup)
    if shape.max_positions < setup.max_model_len:
        problem = f"{path} has {shape.max_positions:,} positions, and a request up to {setup.max_model_len:,} tokens"
        raise ConfigError(field, problem, f"lower {stage}.max_model_len, or use another model")
    return ModelDrafter(ArDraftModel(model, setup.vocab_size), setup.drafts)


def _check_vocabulary(field: str, checkpoint: Checkpoint, vocab_size: int, setup: DraftSetup) -> None:
    """Without tables of ids, their numbers are compared."""
    if not check_tables(field, checkpoint, vocab_size, setup) and vocab_size != setup.vocab_size:
        stage = setup.context.stage.name
        problem = f"{checkpoint.path} has {vocab_size:,} token ids, and stage {stage!r} has {setup.vocab_size:,}"
        raise ConfigError(field, problem, "use a model with the stage's vocabulary")
