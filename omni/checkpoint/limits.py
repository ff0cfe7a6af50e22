"""Limits of counts in config.json: building a model takes time per layer, so an unbounded count would never finish."""

import re
from collections.abc import Mapping
from typing import Any

from omni.checkpoint.checks import RESTORE_CONFIG
from omni.errors import CheckpointError, quoted, shortened

_MOST = (
    (re.compile(r"\w*layers|depth|n_layer"), 1024),
    (re.compile(r"\w*(codebooks|quantizers|code_groups)"), 1024),
    (re.compile(r"\w*vocab_size"), 2**22),
    (re.compile(r"\w*(hidden|intermediate|embedding|patch|merge|kernel)_size|\w*_dim|\w*heads|d_model"), 2**24),
)
"""transformers' names of counts and sizes, with limits several times above any published model."""
_MOST_OF_ANY = 2**63
"""Limit of integers of any name: libraries accept no larger ones."""


def check_counts(config: Mapping[str, Any], path: str = "") -> None:
    """Raises CheckpointError, which names the first field of config.json, or of a table in it, that exceeds its limit. Runs before
    transformers reads the config, since transformers lists every layer."""
    for name, value in config.items():
        field = f"{path}.{name}" if path else name
        if isinstance(value, dict):
            check_counts(value, field)
        elif isinstance(value, int):
            most = next((most for names, most in _MOST if names.fullmatch(name)), value)
            if abs(value) >= _MOST_OF_ANY or value > most:
                problem = (
                    f"is {value:,}, above {most:,}" if abs(value) < _MOST_OF_ANY else f"is {quoted(value)}, too large"
                )
                raise CheckpointError(f"config.json: {shortened(field)}", problem, RESTORE_CONFIG)
