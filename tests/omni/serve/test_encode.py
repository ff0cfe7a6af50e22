"""Formats of speech: sound is equal after encoding, whole and in pieces, and decoding."""

import asyncio
import io
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
import soundfile
import soxr
import torch

from omni.errors import InputError, StageError
from omni.serve.audio import encoder_pool
from omni.serve.audio.encode import FORMATS, SpeechEncoder, check_format
from omni.serve.audio.encoded_sound import EncodedSound
from omni.serve.audio.encoder_messages import EncodeWork, ForgetEncoder
from omni.serve.audio.encoder_pool import EncoderPool
from omni.serve.audio.encoder_process import Encoders
from omni.utils.sockets import limit_wait
from tests.omni.serve.decoded import decoded
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


def pushed(pool: EncoderPool, format: str, samples: np.ndarray, *, whole: bool = False, size: int = 4800) -> bytes:
    return asyncio.run(_pushed(EncodedSound(format, pool, whole=whole), samples, size))


async def _pushed(sound: EncodedSound, samples: np.ndarray, size: int = 4800) -> bytes:
    pieces = [
        await sound.push(torch.from_numpy(samples[start : start + size]), 24000)
        for start in range(0, len(samples), size)
    ]
    return b"".join(pieces) + await sound.finish()


@pytest.fixture(scope="module")
def pool() -> Iterator[EncoderPool]:
    pool = EncoderPool(2)
    yield pool
    assert not any(process.files for process in pool.processes)
    asyncio.run(pool.close())


@pytest.mark.parametrize("whole", [False, True], ids=["streamed", "whole"])
@pytest.mark.parametrize("format", FORMATS)
def test_another_process_writes_the_same_file(pool: EncoderPool, format: str, whole: bool) -> None:
    samples, chosen = tone(24000, 1.0), FORMATS[format]
    here = encoded((chosen.whole if whole else chosen.streamed)(24000), samples, 4800)
    again, no_processes = pushed(pool, format, samples, whole=whole), EncoderPool(0)
    if format == "opus":  # Ogg has a random number for the stream, and a checksum over it
        again, here = without_serial(again), without_serial(here)
    assert again == here
    assert len(pushed(no_processes, format, samples, whole=whole)) == len(here)


def without_serial(ogg: bytes) -> bytes:
    """Pages without their serial number and checksum."""
    made, at = bytearray(ogg), 0
    while at < len(made):
        made[at + 14 : at + 18] = made[at + 22 : at + 26] = bytes(4)
        segments = made[at + 26]
        at += 27 + segments + sum(made[at + 27 : at + 27 + segments])
    return bytes(made)


def test_files_at_once_do_not_mix(pool: EncoderPool) -> None:
    sounds = [tone(24000, 0.5) * share / 10 for share in range(10)]

    async def all_at_once() -> list[bytes]:
        return await asyncio.gather(*(_pushed(EncodedSound("flac", pool), sound, 1000) for sound in sounds))

    for sound, file in zip(sounds, asyncio.run(all_at_once()), strict=True):
        np.testing.assert_allclose(decoded(file, "flac")[0], sound, atol=1 / 32767)


def test_files_are_spread_over_the_processes(pool: EncoderPool) -> None:
    async def spread() -> list[int]:
        held = [pool.open("mp3", 24000, whole=False) for _ in range(6)]
        return [len(process.files) for process in pool.processes] if held else []

    assert asyncio.run(spread()) == [3, 3]


def test_a_file_may_be_forgotten_at_any_point_of_any_thread() -> None:
    """The garbage collector runs finalizers also where a thread holds a lock: here that of all executors, within `submit`."""
    code = """
import asyncio
from concurrent.futures import ThreadPoolExecutor
from omni.serve.audio.encoder_pool import EncoderPool

class Name:
    def __str__(self):
        held.clear()
        return "name"

async def main():
    pool = EncoderPool(1)
    held.append(pool.open("mp3", 24000, whole=False))
    with ThreadPoolExecutor(1, Name()) as executor:
        executor.submit(int).result()
    assert not held
    await pool.close()
    print(len(pool.processes[0].files))

held = []
asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_SECONDS,
    )
    assert done.stdout == "0\n"


def test_sound_that_its_client_left_is_forgotten() -> None:
    encoders = Encoders()
    for number in range(3):
        work = EncodeWork(number, "aac", 24000, False, True, tone(24000, 0.1).tobytes(), number == 1)
        reply = encoders.answer(work)
        assert reply is not None
        assert not reply.problem
    assert len(encoders) == 2
    assert encoders.answer(ForgetEncoder(0)) is None
    assert encoders.answer(ForgetEncoder(0)) is None
    assert len(encoders) == 1


def test_a_client_that_leaves_frees_its_place(pool: EncoderPool) -> None:
    async def leave() -> None:
        sound = EncodedSound("mp3", pool)
        pushing = asyncio.create_task(sound.push(torch.zeros(2**20), 24000))
        await asyncio.sleep(0)
        assert sum(len(process.files) for process in pool.processes) == 1
        pushing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pushing

    asyncio.run(leave())
    assert sum(len(process.files) for process in pool.processes) == 0
    assert decoded(pushed(pool, "mp3", tone(24000)), "mp3")[1] == 24000


def test_a_process_that_ends_fails_its_files_alone() -> None:
    pool = EncoderPool(1)
    samples = torch.from_numpy(tone(24000))

    async def end_within() -> None:
        sound, idle = EncodedSound("mp3", pool), EncodedSound("mp3", pool)
        assert await sound.push(samples, 24000)
        await idle.push(samples, 24000)
        pid = pool.processes[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(StageError, match="its process ended"):
            await sound.push(samples, 24000)
        with pytest.raises(StageError, match="the start of the file is gone"):
            await idle.push(samples, 24000)
        assert pool.processes[0].pid != pid
        os.kill(pool.processes[0].pid or 0, signal.SIGKILL)
        assert await _pushed(EncodedSound("mp3", pool), samples.numpy())

    asyncio.run(end_within())
    asyncio.run(pool.close())


@pytest.mark.parametrize("count", [4800, 2**16])
def test_a_stopped_process_is_ended_and_started_again(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """count: samples of a message, which fits into the socket's buffer or does not."""
    monkeypatch.setattr(encoder_pool, "_EXIT_SECONDS", 0.1)
    pool, samples = EncoderPool(1), torch.from_numpy(tone(24000, 4.0))

    async def stop_within() -> None:
        sound = EncodedSound("mp3", pool)
        assert await sound.push(samples, 24000)
        process = pool.processes[0]
        assert process.pid is not None
        assert process._connection is not None
        stopped = process.pid
        with socket.socket(fileno=os.dup(process._connection.fileno())) as end:
            # Not before: its start takes longer.
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                assert end.getsockopt(socket.SOL_SOCKET, option, 16) == struct.pack("ll", 60, 0)
                limit_wait(end, option, 0.25)
        os.kill(stopped, signal.SIGSTOP)
        with pytest.raises(StageError, match="its process answered nothing for 60 s"):
            await sound.push(samples[:count], 24000)
        assert await _pushed(EncodedSound("mp3", pool), samples.numpy())
        assert pool.processes[0].pid != stopped

    asyncio.run(stop_within())
    asyncio.run(pool.close())


def test_processes_of_encoders_start_without_torch() -> None:
    code = "import sys, omni.serve.audio.encoder_process; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_signals_to_the_group_leave_files_alone(pool: EncoderPool) -> None:
    """Ctrl-C reaches all processes; the server first ends the requests under way."""
    pushed(pool, "flac", tone(24000, 0.1))
    for process in pool.processes:
        if process.pid is not None:
            os.kill(process.pid, signal.SIGINT)
            os.kill(process.pid, signal.SIGTERM)
    pids = [process.pid for process in pool.processes]
    assert decoded(pushed(pool, "flac", tone(24000)), "flac")[1] == 24000
    assert [process.pid for process in pool.processes] == pids


LEFT = """
import gc, threading
import numpy as np
from omni.serve.audio.encode import FORMATS

def leave(seed):
    dice = np.random.default_rng(seed)
    for _ in range(20):
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
