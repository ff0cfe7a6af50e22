"""Formats of speech: what is encoded, whole and in pieces, is what is decoded."""

import io
import subprocess
import sys

import numpy as np
import pytest
import soundfile
import soxr

from omni.errors import InputError
from omni.serve.audio.encode import FORMATS, SpeechEncoder, check_format
from tests.support.decoded import decoded
from tests.support.entry_points import REPOSITORY
from tests.support.patience import PATIENCE_SECONDS

RATES = (8000, 16000, 24000, 44100, 24001)
LOSSLESS = ("wav", "flac")


def tone(rate: int, seconds: float = 1.0) -> np.ndarray:
    return (np.sin(np.arange(round(rate * seconds)) * 2 * np.pi * 440 / rate) * 0.5).astype(np.float32)


def encoded(encoder: SpeechEncoder, samples: np.ndarray, sizes: int = 997) -> bytes:
    pieces = [encoder.push(samples[start : start + sizes]) for start in range(0, len(samples), sizes)]
    return b"".join(pieces) + encoder.finish()


@pytest.mark.parametrize("whole", [False, True], ids=["streamed", "whole"])
@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("format", FORMATS)
def test_a_file_decodes_to_the_sound(format: str, rate: int, whole: bool) -> None:
    made = FORMATS[format].whole if whole else FORMATS[format].streamed
    got, got_rate = decoded(encoded(made(rate), tone(rate)), format)
    # Lossy codecs add their padding: a frame and the encoder's delay.
    padding = 0.001 if format in (*LOSSLESS, "pcm16", "opus") else 4 * 1152 / got_rate
    assert -0.001 <= len(got) / got_rate - 1 <= padding
    crossings = np.count_nonzero(np.diff(np.signbit(got[got_rate // 5 : got_rate * 4 // 5])))
    assert abs(crossings / 1.2 - 440) < 3
    assert 0.45 < np.abs(got[got_rate // 5 : got_rate * 4 // 5]).max() < 0.6


@pytest.mark.parametrize("whole", [False, True], ids=["streamed", "whole"])
@pytest.mark.parametrize("format", LOSSLESS)
def test_lossless_formats_hold_every_sample(format: str, whole: bool) -> None:
    samples = np.random.default_rng(0).uniform(-1.2, 1.2, 5000).astype(np.float32)
    made = FORMATS[format].whole if whole else FORMATS[format].streamed
    got, rate = decoded(encoded(made(22050), samples), format)
    assert rate == 22050
    np.testing.assert_allclose(got, np.clip(samples, -1, 1), atol=1.6 / 32767)


def test_pcm_is_resampled_like_a_whole() -> None:
    samples = np.random.default_rng(0).uniform(-0.5, 0.5, 5000).astype(np.float32)
    got, _ = decoded(encoded(FORMATS["pcm16"].streamed(16000), samples), "pcm16")
    np.testing.assert_allclose(got, soxr.resample(samples, 16000, 24000), atol=1e-3)


@pytest.mark.parametrize("format", ["wav", "flac", "mp3"])
def test_whole_files_have_their_length_in_the_header(format: str) -> None:
    info = soundfile.info(io.BytesIO(encoded(FORMATS[format].whole(24000), tone(24000))))
    assert (info.frames, info.samplerate) == (24000, 24000)


@pytest.mark.parametrize("format", FORMATS)
def test_streamed_bytes_come_with_their_sound(format: str) -> None:
    """A client can play all but the last fifth of a second."""
    encoder, samples = FORMATS[format].streamed(24000), tone(24000, 2.0)
    early = b"".join(encoder.push(samples[start : start + 1920]) for start in range(0, 24000, 1920))
    got, rate = decoded(early, format)
    assert len(got) / rate > 0.8


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(InputError, match="use one of wav, pcm16"):
        check_format("midi", "audio.format")


LEFT = """
import gc, threading
import numpy as np
from omni.serve.audio.encode import FORMATS

def leave(seed):
    dice = np.random.default_rng(seed)
    for _ in range(40):
        for name in ("mp3", "opus", "aac", "flac"):
            encoder = FORMATS[name].streamed(24000)
            for _ in range(dice.integers(1, 5)):
                encoder.push(dice.normal(size=1920).astype(np.float32) / 10)
            if dice.random() < 0.5:
                encoder.finish()

gc.set_threshold(50, 2, 2)
threads = [threading.Thread(target=leave, args=(seed,)) for seed in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
gc.collect()
"""


def test_an_encoder_that_its_client_left_is_collected() -> None:
    """Its file has no end, and any thread may collect it: PyAV before 17.0.1 crashes there."""
    command = [sys.executable, "-X", "faulthandler", "-c", LEFT]
    done = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
    )
    assert done.returncode == 0, done.stderr[-2000:]
