"""Settings that put a tiny Qwen3-Omni under pressure, and its counters then."""

from collections.abc import Mapping

from tests.support.omni_engine import OmniEngine

Overrides = Mapping[str, object]

SMALL_BUDGET: Overrides = {"thinker.max_num_batched_tokens": 7, "talker.max_num_batched_tokens": 7}
NO_CACHE: Overrides = {"thinker.prefix_cache": False, "talker.prefix_cache": False}


def few_blocks(thinker: int, talker: int) -> Overrides:
    """So many blocks, of four tokens each."""
    return {
        "thinker.block_size": 4,
        "thinker.num_blocks": thinker,
        "talker.block_size": 4,
        "talker.num_blocks": talker,
    }


def overrides(*settings: Overrides) -> dict[str, object]:
    """All of them, later ones over earlier ones."""
    return {name: value for part in settings for name, value in part.items()}


def counted(engine: OmniEngine, stage: str) -> Mapping[str, int]:
    """The stage's totals."""
    return engine.engine.counters()[stage]
