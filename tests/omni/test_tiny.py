"""What tiny checkpoints are written with: weights that keep the scale of signals, words that stay whole."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoTokenizer, Qwen2Tokenizer

from omni.tiny import ChatTokens, build_tokenizer, fill, mrope_section, sayable, scale_peak, tame, write_tokenizer
from omni.tiny.chat import WORDS

TOKENS = ChatTokens(
    special=(
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
        "<a>",
        "<A>",
        "</a>",
        "<v>",
        "<I>",
        "<V>",
        "</v>",
        "<note>",
    ),
    plain=("<note>",),
    audio=("<a>", "<A>", "</a>"),
    image=("<v>", "<I>", "</v>"),
    video=("<v>", "<V>", "</v>"),
    default_system="you are here",
)
CHAT: Any = [{"role": "user", "content": [{"type": "audio"}, {"type": "text", "text": "who is"}, {"type": "image"}]}]
PROMPT = (
    "<|im_start|>system\nyou are here<|im_end|>\n<|im_start|>user\n<a><A></a>who is<v><I></v><|im_end|>\n"
    "<|im_start|>assistant\n"
)


@pytest.mark.parametrize("older", [False, True])
def test_both_kinds_of_tokenizer_files_are_read_back(tmp_path: Path, older: bool) -> None:
    if older:
        write_tokenizer(tmp_path, TOKENS, Qwen2Tokenizer, "Processor", 99)
    else:
        build_tokenizer(TOKENS, Qwen2Tokenizer, 99).save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert (tokenizer.model_max_length, tokenizer.audio_token, tokenizer.vision_eos_token) == (99, "<A>", "</v>")
    template = TOKENS.template()
    text = tokenizer.apply_chat_template(CHAT, chat_template=template, add_generation_prompt=True, tokenize=False)
    assert text == PROMPT
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert {"system", "user", "assistant", "<A>", "Ġis"} <= set(tokenizer.convert_ids_to_tokens(ids))
    assert {str(tokenizer.decode([i])).strip() for i in sayable(tokenizer, len(tokenizer))} == {*WORDS, *".,?!"}
    ids_of = tokenizer.get_vocab()
    names = {"audio_token_index": "<A>", "image_token_index": "<I>", "video_token_index": "<V>"}
    names |= {"audio_start_token_id": "<a>", "audio_end_token_id": "</a>"}
    names |= {"vision_start_token_id": "<v>", "vision_end_token_id": "</v>"}
    assert TOKENS.media_ids(ids_of, "_token_index") == {name: ids_of[token] for name, token in names.items()}


@torch.no_grad()
def test_matrices_keep_the_scale_of_their_inputs() -> None:
    """Twice it, and less in parts that are deep; of a transposed convolution too, where only some taps meet."""
    head, vocoder = nn.Linear(64, 512), nn.ConvTranspose1d(64, 64, 8, stride=4)
    model = nn.ModuleDict({"head": head, "vocoder": vocoder})
    fill(model, torch.Generator().manual_seed(0), deep="vocoder")
    noise = torch.randn(64, 64, 50, generator=torch.Generator().manual_seed(1))
    assert head(noise[:, :, 0]).std() == pytest.approx(2, rel=0.1)
    assert vocoder(noise)[..., 8:-8].std() == pytest.approx(0.8, rel=0.1)
    assert 0.05 < head.bias.std() < 0.2


def test_tiny_weights_give_a_peak_and_favour_given_tokens() -> None:
    last, heard = nn.Conv1d(3, 1, 5), torch.randn(1, 3, 99)
    scale_peak(last, lambda: (10 * last(heard)).clamp(-1, 1))
    assert (10 * last(heard)).abs().max().item() == pytest.approx(0.5, rel=1e-4)
    head = nn.Linear(4, 6, bias=False)
    before = head.weight.detach().clone()
    tame(head, {0, 1}, {2}, gain=3.0)
    factors = torch.tensor([1, 1, 3, 0.1, 0.1, 0.1])[:, None].expand(6, 4)
    torch.testing.assert_close(head.weight.detach() / before, factors)


@pytest.mark.parametrize("head_dim", [16, 32, 128])
def test_sections_share_all_frequencies(head_dim: int) -> None:
    assert sum(mrope_section(head_dim, 20)) == sum(mrope_section(head_dim, 24)) == head_dim // 2
    assert mrope_section(128, 20) == [24, 20, 20]
