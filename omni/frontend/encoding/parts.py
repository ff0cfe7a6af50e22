"""Long texts in parts whose concatenated ids are those of the whole text."""

import json
import re
from collections import deque
from collections.abc import Iterator
from typing import Any

from tokenizers import Tokenizer

from omni.errors import InputError

PART = 2**16
"""Characters of a part, if the text can be cut there."""

LONGEST_PART = 2**20
"""Characters that cannot be cut. Encoding so many takes up to three seconds."""

_LEFT = (
    r"0-9A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u0391-\u03a1\u03a3-\u03a9\u03b1-\u03c9\u0410-\u044f"
    r"\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fa5\uac00-\ud7a3"
)
"""Digits, and characters that are letters in every version of Unicode."""
_RIGHT = r"\t\n\r !\"(),.:;?\u3001\u3002\uff01\uff08\uff09\uff0c\uff1a\uff1b\uff1f"
"""White space and punctuation, which never combine with these."""
_CUT = re.compile(f"(?<=[{_LEFT}])(?=[{_RIGHT}])")

_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_OTHERS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_PATTERNS = frozenset(
    f"(?i:'s|'t|'re|'ve|'m|'ll|'d)|{_LETTERS}|{digits}{_OTHERS}" for digits in (r"\p{N}", r"\p{N}{1,3}")
)
"""The split of texts into words by published BPE tokenizers. No word continues past the last of several letters or digits, and none
depends on the text before it, so both sides of a `_CUT` are split as in one text. The same holds for the default pattern of the
tokenizers library."""


def may_part(tokenizer: Tokenizer) -> bool:
    """Whether the tokenizer is known to encode parts of a text as it encodes the whole."""
    steps = _state(tokenizer.pre_tokenizer)
    normal, model = _state(tokenizer.normalizer), tokenizer.model
    if normal not in (None, {"type": "NFC"}) or type(model).__name__ != "BPE" or model.dropout is not None:
        return False
    words = tokenizer.get_added_tokens_decoder().values()
    if any(word.lstrip or word.rstrip or word.single_word or _CUT.search(word.content) for word in words):
        return False
    match steps:
        case {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}:
            return True
        case {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": str(pattern)}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        }:
            return pattern in _PATTERNS
    return False


def parts(text: str) -> Iterator[str]:
    """Raises InputError for a text with too many characters that cannot be cut."""
    start = 0
    while len(text) - start > PART:
        cuts = _CUT.finditer(text, start + PART // 2, start + PART)
        last = deque(cuts, maxlen=1) or [_CUT.search(text, start + PART)]
        end = last[0].start() if last[0] else len(text)
        if end - start > LONGEST_PART:
            problem = f"hold {end - start:,} characters without the end of a word, more than {LONGEST_PART:,}"
            raise InputError("messages", problem, "put spaces or line breaks between them")
        yield text[start:end]
        start = end
    yield text[start:]


def _state(step: Any) -> Any:
    return json.loads(step.__getstate__()) if step is not None else None
