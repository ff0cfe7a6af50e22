"""A stage with a head over its hidden states, cut across simulated ranks under traffic that a seed decides.

Each request has its results of the whole model without drafts, and each draft is that of the head run from the start of the text.
"""

import random
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import msgspec
import torch
from torch import Tensor

from omni.parallel import RankLayout
from omni_ar.drafters import Drafter, DraftRows, ModelDrafter
from omni_ar.drafters.load import load_drafter
from omni_ar.model import ArModel
from omni_ar.options import ArOptions
from omni_ar.plugin import omni_drafters
from omni_ar.run.step import SampledStep, StepContext
from tests.stages.omni_ar.simulated_stage import SAMPLING, TEXT, Scenario, SimulatedRequest, SimulatedStage
from tests.support.ar_driver import ArDriver
from tests.support.tiny_heads import setup_of
from tests.support.trained_heads import MOST, PROMPTS, trained

LENGTH = 64


@dataclass(frozen=True)
class Known(SimulatedRequest):
    """Its prompt is one whose greedy text the head has learned."""

    @property
    def ids(self) -> list[int]:
        return PROMPTS[self.number]


def heads(kind: str, seed: int, layout: RankLayout) -> Scenario:
    """kind: of head."""
    draw = random.Random(f"{kind} {seed}")
    rows, few, chunked = draw.choice((1, 3, 4, 4)), draw.random() < 0.5, draw.random() < 0.5
    options = ArOptions(
        max_num_seqs=rows,
        block_size=4,
        num_blocks=draw.choice((14, 15, 16)) if few else None,
        max_num_batched_tokens=8 if chunked else 64,
        max_model_len=LENGTH,
        max_in_flight=draw.choice((1, 2, 3, 4, 8)),
        prefix_cache=draw.random() < 0.5,
        graph_batch_sizes=(min(rows, 2), min(rows, 3)),
        graph_chunk_sizes=(8,) if chunked else (8, 16),
        drafter=kind,
        drafter_args=trained(kind).args,
        draft_tokens=draw.choice((1, 2, 3, 5, 8)),
        adaptive_drafts=draw.random() < 0.3,
        hidden_layers=draw.choice(((), (1, 4))),
    )
    asks = [
        (
            draw.randrange(150),
            Known(
                draw.randrange(len(PROMPTS)),
                draw.choice(("greedy", "greedy", *sorted(SAMPLING))),
                most=draw.choice((3, 12, MOST, MOST)),
            ),
        )
        for _ in range(draw.randrange(4, 8))
    ]
    leaves = {index: at + draw.randrange(300) for index, (at, _) in enumerate(asks) if draw.random() < 0.2}
    return Scenario("text", layout, options, draw.random() < 0.5, tuple(asks), leaves)


def crowded_heads(kind: str, seed: int, layout: RankLayout) -> Scenario:
    """As `heads`, with requests that begin together and preempt each other."""
    plan = heads(kind, seed, layout)
    options = msgspec.structs.replace(plan.options, max_num_seqs=4, num_blocks=14, graph_batch_sizes=(2, 4))
    return replace(plan, options=options, asks=tuple((at % 6, ask) for at, ask in plan.asks))


def failing_heads(kind: str, seed: int, layout: RankLayout) -> Scenario:
    """As `heads`, with steps that fail after the last layer range: before their tokens, and while their drafts are made."""
    plan, draw = heads(kind, seed, layout), random.Random(f"failing {seed}")
    fails = {name: draw.sample(range(1, 40), 2) for name in ("compute_logits", "draft_tokens")}
    return replace(plan, captured=False, fails=fails)


@cache
def alone(kind: str, ask: SimulatedRequest) -> Any:
    model = trained(kind).setup.model
    driver = ArDriver(model, options=ArOptions(max_num_seqs=1, block_size=4, max_model_len=LENGTH))
    TEXT.ask(driver, "alone", ask)
    driver.gather_all()
    return TEXT.got(driver, "alone")


@cache
def expected_drafts(kind: str, text: int, known: int, count: int) -> list[int]:
    return trained(kind).drafts(text, known, count)


@dataclass
class HeadStage(SimulatedStage):
    """made: the drafts that rank 0 has made, in order."""

    made: list["Made"] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        runner = self.driver.runner
        sample = runner.sample_tokens

        def checked(context: StepContext) -> SampledStep:
            step = sample(context)
            if context.launch.draft_blocks and step.tokens is not None:
                assert step.end is not step.tokens.made, "drafts are work of the step, behind its tokens"
            return step

        runner.sample_tokens = checked  # type: ignore[method-assign]

    def run(self) -> None:
        super().run()
        self._check_drafts()

    def _model(self, rank: int) -> tuple[ArModel, Drafter | None]:
        kind, options = self.scenario.options.drafter, self.scenario.options
        assert kind is not None
        entries = {entry.name: entry for entry in omni_drafters()}
        with torch.inference_mode():
            context = setup_of(trained(kind).folder, ranks=self.world.ranks[rank], drafters=entries).context
            context = replace(context, options=options)
            model = setup_of(trained(kind).folder, ranks=self.world.ranks[rank]).model
            drafter = load_drafter(context, model, LENGTH)
        assert isinstance(drafter, ModelDrafter)
        assert drafter.weight_bytes > 0
        if not rank:
            self._watch(drafter)
        return model, drafter

    def _alone(self, ask: SimulatedRequest) -> Any:
        assert self.scenario.options.drafter is not None
        return alone(self.scenario.options.drafter, ask)

    def _watch(self, drafter: ModelDrafter) -> None:
        draft = drafter.draft

        def keep(rows: DraftRows) -> None:
            draft(rows)
            self.made.append(Made.of(rows))

        drafter.draft = keep  # type: ignore[method-assign]

    def _check_drafts(self) -> None:
        """Adaptive ones may lack the features of tokens without drafts."""
        options = self.scenario.options
        assert options.drafter is not None
        texts = trained(options.drafter).texts
        for made in self.made:
            for text_L, drafts, proposed, remaining in made.rows():
                text = next((at for at, ids in enumerate(texts) if ids[: len(text_L)] == text_L), None)
                count = min(options.drafts, remaining)
                if text is None or len(text_L) == len(texts[text]) or options.adaptive_drafts:
                    continue
                assert proposed == options.drafts, text_L
                assert drafts[:count] == expected_drafts(options.drafter, text, len(text_L), count), text_L
                self.counters["checked"] += 1


@dataclass(frozen=True)
class Made:
    """What a drafter wrote of each of its rows. state_R4: whether it is active, its length, the number of drafts, and that of
    drafts that may be verified."""

    text_RL: Tensor
    drafts_RK: Tensor
    state_R4: Tensor

    @classmethod
    def of(cls, rows: DraftRows) -> "Made":
        assert rows.pages is not None
        columns, rows_R = rows.pages.columns, rows.rows_R
        state = columns.active, rows.length_N + 1, rows.proposed_N, columns.limit - columns.outputs - 1
        return cls(rows.text_NL[rows_R], rows.drafts_NK[rows_R], torch.stack([each[rows_R] for each in state], 1))

    def rows(self) -> list[tuple[list[int], list[int], int, int]]:
        """Of active ones: text, drafts, their number, and the number that may be verified."""
        given = zip(self.text_RL.tolist(), self.drafts_RK.tolist(), self.state_R4.tolist(), strict=True)
        return [
            (text[:length], drafts, proposed, remaining)
            for text, drafts, (active, length, proposed, remaining) in given
            if active
        ]
