"""Traces whose every time is known."""

from dataclasses import replace

from omni.device import PhaseCategory
from omni.timeline import MAIN, HostSpan, Interval, PhaseSpan, Trace

PHASES = (
    ("prepare_decodes", PhaseCategory.PREPROCESS, 10_000),
    ("embed_inputs", PhaseCategory.PREPROCESS, 5_000),
    ("run_forward", PhaseCategory.FORWARD, 700_000),
    ("compute_logits", PhaseCategory.LOGITS, 60_000),
    ("sample_rows", PhaseCategory.SAMPLE, 30_000),
    ("accept_tokens", PhaseCategory.SAMPLE, 10_000),
    ("hand_tokens_over", PhaseCategory.TOKEN_POINT, 0),
    ("copy_scores", PhaseCategory.SCORES, 4_000),
    ("post_update", PhaseCategory.POSTPROCESS, 8_000),
)
"""Of a step, with what each takes. `copy_scores` is on a stream of its own, from `COPY_LATE` after the token point."""
COPY_LATE = 2_000
LAUNCH = 6_000
"""Nanoseconds of a launch; between two there are as many again."""
STEP = 823_000
"""Times of a step's phases on the stage's own stream."""


def made_step(
    stage: str, number: int, launch: int, run: int, prefill: int = 0
) -> tuple[list[PhaseSpan], list[HostSpan]]:
    """A step whose first launch is at `launch`, and whose phases run without a break from `run`."""
    phases, at, began = [], run, launch
    for name, category, length in PHASES:
        launched = Interval(launch, launch + LAUNCH)
        if category is PhaseCategory.SCORES:
            ran = Interval(at + COPY_LATE, at + COPY_LATE + length)
            phases.append(
                PhaseSpan(
                    stage=stage, lane="scores", phase=name, category=category, step=number, launched=launched, ran=ran
                )
            )
        else:
            phases.append(
                PhaseSpan(
                    stage=stage,
                    lane=MAIN,
                    phase=name,
                    category=category,
                    step=number,
                    launched=launched,
                    ran=Interval(at, at + length),
                )
            )
            at += length
        launch += 2 * LAUNCH
    half = began + 6 * LAUNCH
    numbers = {"step": number, "decodes": 4, "prefill": prefill}
    host = [
        HostSpan(stage, "execute_model", numbers, Interval(began - 1000, half - 1000)),
        HostSpan(stage, "sample_tokens", {"step": number}, Interval(half - 1000, launch)),
    ]
    return phases, host


def made_trace(gaps: tuple[int, ...], stage: str = "thinker", ahead: int = 400_000) -> Trace:
    """Steps from number 10, with `gaps` between them on the device; each is launched `ahead` of its run."""
    phases: list[PhaseSpan] = []
    host: list[HostSpan] = []
    run = 1_000_000
    for number, gap in enumerate((*gaps, 0)):
        made, did = made_step(stage, 10 + number, run - ahead, run)
        phases += made
        host += did
        run += STEP + gap
    return Trace(
        "cuda:0 (made)", tuple(sorted(phases, key=lambda span: span.launched.start)), host=tuple(host), error=3000
    )


def made_ranks(ahead: int = 0, late: bool = False) -> dict[str, Trace]:
    """Traces of two ranks by place, whose steps 10 to 13 follow each other; step 11 has prompts. `cuda:1` has the first layers,
    whose phases last half as long. Each rank launches a step at the same time; `cuda:1` runs it `STEP + ahead` before `cuda:0`.
    late: whether its forward of step 12 ends after that of `cuda:0`."""
    last, first = made_trace((0, 0, 0), ahead=6 * STEP), made_trace((0, 0, 0), ahead=6 * STEP)
    categories = (PhaseCategory.PREPROCESS, PhaseCategory.FORWARD)
    phases = tuple(
        replace(
            span,
            launched=Interval(span.launched.start + LAUNCH, span.launched.end + LAUNCH),
            ran=Interval(
                at := span.ran.start - (-STEP if late and span.step == 12 else STEP + ahead), at + span.ran.length // 2
            ),
        )
        for span in first.phases
        if span.category in categories
    )
    host = [replace(span, numbers={**span.numbers, "prefill": 64 * (span.numbers["step"] == 11)}) for span in last.host]
    followed = [replace(span, name="follow") for span in host if span.name == "execute_model"]
    return {"cuda:0": replace(last, host=tuple(host)), "cuda:1": replace(first, phases=phases, host=tuple(followed))}
