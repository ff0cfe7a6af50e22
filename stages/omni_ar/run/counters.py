"""What a stage counts, of all requests and of one."""

from omni_ar.run.output_processor import OutputProcessor
from omni_ar.run.request import ArRequest


def draft_counters(processor: OutputProcessor) -> dict[str, int]:
    """In total, and by position, from 1. Nothing without a drafter."""
    drafted, accepted = processor.drafted, processor.accepted
    if not drafted:
        return {}
    by_position = {f"drafted_tokens_{at}": count for at, count in enumerate(drafted, 1)}
    by_position |= {f"accepted_drafts_{at}": count for at, count in enumerate(accepted, 1)}
    return {"drafted_tokens": sum(drafted), "accepted_drafts": sum(accepted)} | by_position


def request_counts(request: ArRequest) -> dict[str, int]:
    counts = {
        "tokens": len(request.outputs),
        "prompt_tokens": request.length if request.prompt else 0,
        "cached_tokens": request.num_cached_tokens or 0,
    }
    if request.num_drafts:
        counts |= {
            "drafted_steps": request.num_drafted_steps,
            "drafted_tokens": request.num_drafts,
            "accepted_drafts": request.num_accepted_drafts,
        }
    return counts | ({"frames": request.num_frames} if request.num_frames else {})
