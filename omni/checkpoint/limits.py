"""What config.json may count. A model is built layer by layer, so a count without bound would keep it busy forever."""

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
"""Names that transformers gives to counts and sizes, and several times as much as any published model has."""
_MOST_OF_ANY = 2**63
"""Of whole numbers of any name: more no library takes."""


def check_counts(config: Mapping[str, Any], path: str = "") -> None:
    """Raises CheckpointError, which names the first field of config.json, or of a table in it, that counts too much.

    Before transformers sees the file: it lists every layer.
    """
    for name, value in config.items():
        field = f"{path}.{name}" if path else name
        if isinstance(value, dict):
            check_counts(value, field)
        elif isinstance(value, int):
            if abs(value) >= _MOST_OF_ANY:
                raise CheckpointError(
                    f"config.json: {shortened(field)}", f"is {quoted(value)}, too large", RESTORE_CONFIG
                )
            most = next((most for names, most in _MOST if names.fullmatch(name)), value)
            if value > most:
                raise CheckpointError(
                    f"config.json: {shortened(field)}", f"is {value:,}, above {most:,}", RESTORE_CONFIG
                )
