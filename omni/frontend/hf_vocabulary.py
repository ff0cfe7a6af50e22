"""The vocabulary of a tokenizer of transformers."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from omni.frontend.encoding import Encoder
from omni.frontend.vocabulary import Vocabulary

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SIGN_BYTES = {sign: byte for byte, sign in bytes_to_unicode().items()}
"""The alphabet of byte-level tokens: printable bytes as themselves, the others as characters from U+0100 on."""


def hf_vocabulary(tokenizer: Any, encoder: Encoder | None = None) -> Vocabulary | None:
    """The text that each id adds to `tokenizer.decode(ids, skip_special_tokens=True)`, with a leading space that decoding drops.
    For byte-level tokenizers and those with a character for spaces, with or without byte fallback; None for others, where the text
    of an id depends on the others. encoder: the tokenizer's, if there is one already. Takes about half a second for 150,000 ids."""
    decoder = tokenizer.backend_tokenizer.decoder if isinstance(tokenizer, PreTrainedTokenizerFast) else None
    write = _writer(json.loads(decoder.__getstate__())) if decoder is not None else None
    if write is None:
        return None
    silent = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    ids = tokenizer.get_vocab()
    tokens = [b""] * (max(ids.values()) + 1)
    for text, i in ids.items():
        if i not in silent:
            tokens[i] = write(text)

    return Vocabulary(tuple(tokens), (encoder or Encoder(tokenizer)).backend)


def _writer(decoder: Mapping[str, Any]) -> Callable[[str], bytes] | None:
    """The text of a token, by the decoding steps of the tokenizers library. None for unknown steps."""
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return _byte_level
    signs = []
    for index, step in enumerate(steps):
        match step:
            case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)} if (
                "Fuse" not in kinds[:index]
            ):
                signs.append((old, new))
            case {"type": "Metaspace", "replacement": str(sign)}:
                signs.append((sign, " "))
            case {"type": "ByteFallback" | "Fuse"}:
                pass
            # After the tokens are joined, it affects only the ends of the text.
            case {"type": "Strip"} if "Fuse" in kinds[:index]:
                pass
            case _:
                return None
    return lambda token: _spaced(token, signs, falls_back="ByteFallback" in kinds)


def _spaced(token: str, signs: Sequence[tuple[str, str]], *, falls_back: bool) -> bytes:
    for sign, text in signs:
        token = token.replace(sign, text)
    byte = _BYTE.fullmatch(token) if falls_back else None
    return bytes([int(byte[1], 16)]) if byte else token.encode()


def _byte_level(token: str) -> bytes:
    # A token with a character of no byte is taken literally, as in the library.
    written = [_SIGN_BYTES.get(sign) for sign in token]
    return token.encode() if None in written else bytes(byte for byte in written if byte is not None)
