"""Counts of a request at a stage."""

from omni_ar.run.request import ArRequest


def request_counts(request: ArRequest) -> dict[str, int]:
    counts = {
        "tokens": len(request.outputs),
        "prompt_tokens": request.length if request.prompt else 0,
        "cached_tokens": request.num_cached_tokens or 0,
    }
    return counts | request.drafts.numbers() | ({"frames": request.num_frames} if request.num_frames else {})
