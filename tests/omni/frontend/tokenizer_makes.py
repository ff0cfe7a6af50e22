"""Small tokenizers of every make, the bytes of whose ids are known."""

from functools import cache

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from omni.frontend.hf_vocabulary import hf_vocabulary
from omni.frontend.vocabulary import Vocabulary

SAMPLE = ["hello world, the quick brown fox", "Grüße, 你好世界", "naïve café 👩‍👩‍👧 done", "на здоровье"]


def finished(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True, normalized=False)])
    plain = [AddedToken(word, special=False, normalized=False) for word in ("<think>", "</think>", "two words", "ü")]
    tokenizer.add_tokens(plain)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")


@cache
def byte_level() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(SAMPLE * 5, trainer)
    return finished(tokenizer)


def marked_vocab() -> dict[str, int]:
    letters = {letter: index + 257 for index, letter in enumerate("▁abcdehlorw<>")}
    return {"<unk>": 0} | {f"<0x{byte:02X}>": byte + 1 for byte in range(256)} | letters


@cache
def byte_fallback() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE(vocab=marked_vocab(), merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    return finished(tokenizer)


@cache
def metaspace() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE(vocab=marked_vocab(), merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    return finished(tokenizer)


MAKES = {"byte level": byte_level, "byte fallback": byte_fallback, "metaspace": metaspace}


def id_of(tokenizer: PreTrainedTokenizerFast, word: str) -> int:
    found = tokenizer.convert_tokens_to_ids(word)
    assert isinstance(found, int)
    return found


@cache
def vocabulary(make: str) -> Vocabulary:
    known = hf_vocabulary(MAKES[make]())
    assert known is not None
    return known
