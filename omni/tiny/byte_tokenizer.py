"""A tokenizer without words, for tiny models whose text does not matter."""

from collections.abc import Sequence

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast


def byte_tokenizer(special: Sequence[str], **roles: str) -> PreTrainedTokenizerFast:
    """A tokenizer with the 256 bytes, then special tokens, for `save_pretrained`.

    roles: special tokens known to transformers, such as `eos_token`, which come first. special: the others.
    """
    alphabet = {symbol: i for i, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    words = Tokenizer(models.BPE(alphabet, []))
    words.pre_tokenizer, words.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, **roles)
    tokenizer.add_special_tokens({"additional_special_tokens": list(special)})
    return tokenizer
