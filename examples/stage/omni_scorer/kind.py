"""The stage kind: how a stage is loaded."""

from omni.stage import Footprint, PlainStage, StageContext, build_model, module_bytes
from omni_scorer.model import ScorerModel
from omni_scorer.options import ScorerOptions
from omni_scorer.worker import ScorerWorker


class ScorerKind:
    name = "scorer"
    options = ScorerOptions

    def load(self, context: StageContext) -> PlainStage:
        """Counts the weights and no working memory: where that is large, derive from `omni.stage.MeasuredStage`."""
        assert isinstance(context.options, ScorerOptions)
        model = build_model(context, ScorerModel)  # type: ignore[type-abstract]
        worker = ScorerWorker(context.stage.name, context.device, model, context.options)
        return PlainStage(worker, Footprint(weights=module_bytes(model)))
