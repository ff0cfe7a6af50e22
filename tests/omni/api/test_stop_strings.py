"""Texts end before their stop strings, whole and streamed, on a family that echoes."""

from pathlib import Path

import pytest

from omni import Omni, SamplingParams
from tests.support.echo_family import echo_model, echo_plugins

TEXT = "One. Two: ENd END of it"


@pytest.mark.parametrize(
    ("stop", "min_tokens", "text"),
    [
        (("END",), None, "One. Two: ENd "),
        (("of", "ENd"), None, "One. Two: "),
        (("d E", "END"), None, "One. Two: EN"),
        ((".",), None, "One"),
        (("One. T",), None, ""),
        (("e", "n"), 4, "One. Two: ENd END of it"),
        ((" ",), 6, "One. Two:"),
        (("never",), None, TEXT),
        (("it!", "t "), None, TEXT),
        (("it",), None, TEXT.removesuffix("it")),
    ],
)
def test_a_text_ends_before_its_stop_string(omni: Omni, stop: tuple[str, ...], min_tokens: int | None, text: str):
    sampling = SamplingParams(stop=stop, min_tokens=min_tokens)
    result = omni.generate(TEXT, sampling=sampling, stream=False)
    assert result.text == text
    assert result.finish_reasons["writer"] == "stop"
    # All that was generated, that of the stop string too.
    said = "".join(map(chr, result.tokens))
    assert said.startswith(text)
    assert len(said) == result.usage.tokens["writer"]
    assert any(said.endswith(one) for one in stop) or said == TEXT
    pieces = [output.text for output in omni.generate(TEXT, sampling=sampling)]
    assert "".join(pieces) == text


def test_speech_ends_before_the_stop_string(omni: Omni):
    whole = omni.generate("ab stop cd", stream=False)
    cut = omni.generate("ab stop cd", sampling=SamplingParams(stop=("stop",)), stream=False)
    assert whole.audio is not None
    assert cut.audio is not None
    assert len(cut.audio) * len("ab stop cd") == len(whole.audio) * len("ab ")
    assert cut.text == "ab "


def test_several_byte_letters(omni: Omni):
    result = omni.generate("Größe über alles", sampling=SamplingParams(stop=("üb",)), stream=False)
    assert result.text == "Größe "


def test_samples_watch_their_own_tokens(omni: Omni):
    sampling = SamplingParams(stop=("c\x1ad", "c1"))
    result = omni.generate("abc\x1ad", n=3, sampling=sampling, stream=False)
    assert [result.text, *(one.text for one in result.alternatives)] == ["abc0d", "ab", "abc2d"]


def test_a_stop_string_of_the_settings(tmp_path: Path):
    overrides = {"writer.sampling.stop": '["Two"]'}
    with Omni(echo_model(tmp_path), device="cpu", plugins=echo_plugins(), overrides=overrides) as omni:
        assert omni.generate(TEXT, stream=False).text == "One. "
        assert omni.generate(TEXT, sampling=SamplingParams(stop=("of",)), stream=False).text == "One. Two: ENd END "
        assert omni.generate(TEXT, sampling=SamplingParams(stop=()), stream=False).text == TEXT
