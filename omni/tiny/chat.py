"""The tokenizer files of a tiny checkpoint: byte-level BPE over a few dozen words, and a family's special tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, PreTrainedTokenizerFast

from omni.tiny.shape import write_json

ROLES = ("system", "user", "assistant")
_WORD_LIST = """
the a and of to in is it you that was for on are with as this have from one had by but not what all were we when your can
said there use an each which she do how their if will up other about out many then them these so some her would make
like him into time has look two more write go see number no way could people my than first water been call who its now
find long down day did get come made may part blue red green square circle picture sound voice hello world
"""
WORDS = tuple(_WORD_LIST.split())
_END, _PAD = "<|im_end|>", "<|endoftext|>"


@dataclass(frozen=True, slots=True)
class ChatTokens:
    """Special tokens of a family whose turns are `<|im_start|>role`, a line break, the content, `<|im_end|>` and a line break.
    special: in the order of their ids, which follow the ordinary vocabulary. plain: those that a text shows. audio, image, video:
    start, placeholder and end of a piece of media; empty for a text-only model. default_system: a system turn for conversations
    without one."""

    special: tuple[str, ...]
    audio: tuple[str, ...] = ()
    image: tuple[str, ...] = ()
    video: tuple[str, ...] = ()
    plain: tuple[str, ...] = ()
    default_system: str | None = None

    def media_ids(self, ids: dict[str, int], suffix: str) -> dict[str, int]:
        """The media ids of config.json. suffix: of the placeholders' names, such as `"_token_id"`."""
        placeholders = {"audio": self.audio, "image": self.image, "video": self.video}
        bounds = {"audio": self.audio, "vision": self.image}
        return {
            **{f"{name}{suffix}": ids[tokens[1]] for name, tokens in placeholders.items()},
            **{f"{name}_start_token_id": ids[tokens[0]] for name, tokens in bounds.items()},
            **{f"{name}_end_token_id": ids[tokens[2]] for name, tokens in bounds.items()},
        }

    def roles(self) -> dict[str, str]:
        """The tokenizer's names of the media tokens."""
        if not self.audio:
            return {}
        return {
            "image_token": self.image[1],
            "audio_token": self.audio[1],
            "video_token": self.video[1],
            "vision_bos_token": self.image[0],
            "vision_eos_token": self.image[2],
            "audio_bos_token": self.audio[0],
            "audio_eos_token": self.audio[2],
        }

    def template(self) -> str:
        kinds = {"audio": self.audio, "image": self.image, "video": self.video}
        media = "".join(
            f"{{% elif part.type == '{kind}' %}}{''.join(tokens)}" for kind, tokens in kinds.items() if tokens
        )
        system = f"<|im_start|>system\n{self.default_system}<|im_end|>\n"
        first = "{% if loop.first and message.role != 'system' %}" + system + "{% endif %}"
        return (
            "{% for message in messages %}"
            + (first if self.default_system else "")
            + "<|im_start|>{{ message.role }}\n"
            "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
            "{% if part.type == 'text' %}{{ part.text }}" + media + "{% endif %}{% endfor %}{% endif %}<|im_end|>\n"
            "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
        )


def generation_config(tokenizer: Any) -> GenerationConfig:
    """The generation config of a chat model: an answer ends with its turn, or with the text."""
    return GenerationConfig(
        eos_token_id=[tokenizer.eos_token_id, tokenizer.pad_token_id], pad_token_id=tokenizer.pad_token_id
    )


def byte_tokenizer(special: Sequence[str], **roles: str) -> PreTrainedTokenizerFast:
    """A tokenizer without words, the 256 bytes and then special tokens, for `save_pretrained`: for models without meaningful text.
    roles: special tokens known to transformers, such as `eos_token`, which come first. special: the others."""
    alphabet = {symbol: i for i, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    words = Tokenizer(models.BPE(alphabet, []))
    words.pre_tokenizer, words.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, **roles)
    tokenizer.add_special_tokens({"additional_special_tokens": list(special)})
    return tokenizer


def build_tokenizer(tokens: ChatTokens, tokenizer_class: Any, max_length: int) -> Any:
    """A tokenizer with its chat template, for `save_pretrained`. tokenizer_class: a byte-level BPE class of transformers.
    max_length: the declared maximum of tokens."""
    vocabulary, merges = _vocabulary()
    pairs = [tuple(merge.split()) for merge in merges]
    roles = {"extra_special_tokens": tokens.roles(), "model_max_length": max_length}
    tokenizer = tokenizer_class(vocab=vocabulary, merges=pairs, eos_token=_END, pad_token=_PAD, **roles)
    special = {"additional_special_tokens": list(tokens.special)}
    tokenizer.add_special_tokens(special, replace_extra_special_tokens=False)
    tokenizer.chat_template = tokens.template()
    return tokenizer


def write_tokenizer(
    folder: Path, tokens: ChatTokens, tokenizer_class: Any, processor_class: str, max_length: int
) -> Any:
    """Writes vocab.json, merges.txt, tokenizer_config.json and chat_template.json, the older format; returns the tokenizer read
    back. Arguments as of `build_tokenizer`."""
    vocabulary, merges = _vocabulary()
    flags = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)
    special = {
        str(len(vocabulary) + i): {"content": token, **flags, "special": token not in tokens.plain}
        for i, token in enumerate(tokens.special)
    }
    config = {
        "added_tokens_decoder": special,
        "add_prefix_space": False,
        "bos_token": None,
        "eos_token": _END,
        "pad_token": _PAD,
        "unk_token": None,
        "clean_up_tokenization_spaces": False,
        "errors": "replace",
        "extra_special_tokens": tokens.roles(),
        "model_max_length": max_length,
        "split_special_tokens": False,
        "tokenizer_class": tokenizer_class.__name__,
        "processor_class": processor_class,
    }
    (folder / "vocab.json").write_bytes(msgspec.json.encode(vocabulary))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]), encoding="utf-8")
    write_json(folder / "tokenizer_config.json", config)
    write_json(folder / "chat_template.json", {"chat_template": tokens.template()})
    return tokenizer_class.from_pretrained(folder)


def _vocabulary() -> tuple[dict[str, int], list[str]]:
    """Vocabulary and merges: bytes, then words and their prefixes. Template words first: later merges keep them whole."""
    vocabulary = {symbol: i for i, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges: list[str] = []
    for word in (*ROLES, *(f"Ġ{word}" for word in WORDS)):
        for end in range(1, len(word)):
            if word[: end + 1] not in vocabulary:
                vocabulary[word[: end + 1]] = len(vocabulary)
                merges.append(f"{word[:end]} {word[end]}")
    return vocabulary, merges
