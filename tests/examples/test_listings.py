"""Listings for users, of docs/howto, README.md and other pages, run as a user would, on a tiny checkpoint."""

import asyncio
import re
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
import soundfile

from omni import AsyncOmni, Omni, SamplingParams
from tests.support.entry_points import REPOSITORY, own_entry_points
from tests.support.patience import PATIENCE_SECONDS
from tests.support.reference import tiny_checkpoint
from tests.support.tiny_omni import SHAPE

pytestmark = pytest.mark.thorough

HOWTO = REPOSITORY / "docs" / "howto"
MODEL = "build/tiny-qwen3-omni"
LONG = 200
"""Tokens of an answer without a reader."""
Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs listings of a page, one after the other, in a folder that holds the checkpoint; gives their names.

    given: names that the listings expect."""
    model = tiny_checkpoint(3, max_positions=192, **SHAPE)
    (tmp_path / MODEL).parent.mkdir()
    (tmp_path / MODEL).symlink_to(model)
    (tmp_path / "examples").symlink_to(REPOSITORY / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("omni.plugin.manager.entry_points", lambda group: own_entry_points())
    # Listings give no seeds, and some answers of random weights have no frame.
    monkeypatch.setattr("secrets.randbits", Random(1).getrandbits)

    def run(page: str, **given: Any) -> dict[str, Any]:
        listings = re.findall(r"```python\n(.*?)```", (REPOSITORY / page).read_text(), re.DOTALL)
        assert listings
        names: dict[str, Any] = {"__name__": "listing", **given}
        for code in listings:
            exec(compile(code, page, "exec"), names)
        return names

    return run


def test_every_page_is_tested() -> None:
    tested = re.findall(r'run\("docs/howto/(\w+\.md)"\)', Path(__file__).read_text())
    assert set(tested) == {path.name for path in HOWTO.glob("*.md")}


def test_pcm_is_streamed_to_stdout(run: Run, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    run("docs/howto/pcm.md")
    printed = capfdbinary.readouterr().out
    samples = struct.unpack(f"<{len(printed) // 2}h", printed)
    assert len(samples) > 1000
    assert max(map(abs, samples)) > 100


def test_a_dialogue_keeps_its_turns(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    names = run("docs/howto/dialogue.md")
    assert [message["role"] for message in names["messages"]] == ["system", *["user", "assistant"] * 2]
    assert f"> {names['QUESTIONS'][1]}\n{names['messages'][-1]['content']}" in capsys.readouterr().out
    assert names["result"].usage.prompt_tokens > 32
    assert all(soundfile.info(f"answer-{number}.wav").frames for number in range(2))


def test_a_folder_is_resumed_and_failures_are_named(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts, speech = tmp_path / "texts", tmp_path / "speech"
    texts.mkdir()
    for name, text in (("a", "A circle."), ("b", ""), ("c", "A square.")):
        (texts / f"{name}.txt").write_text(text)
    run("docs/howto/folder.md")
    assert "texts/b.txt: messages: hold no text" in capsys.readouterr().err
    made = {path.name: path.stat().st_mtime_ns for path in speech.iterdir()}
    assert set(made) == {"a.wav", "c.wav"}

    (texts / "b.txt").write_text("A line.")
    names = run("docs/howto/folder.md")
    assert [source.name for source, _ in names["left"]] == ["b.txt"]
    assert {path.name: path.stat().st_mtime_ns for path in speech.glob("[ac].wav")} == made
    assert (speech / "b.wav").exists()


def test_a_handler_streams_and_ends_with_its_client(run: Run) -> None:
    names = run("docs/howto/asyncio.md")

    async def ask(port: int, question: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(question)
        answer = await reader.read()
        writer.close()
        return answer

    async def leave(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"A long story.\n")
        await reader.read(1)
        writer.transport.abort()

    async def main() -> None:
        async with (
            AsyncOmni(MODEL) as omni,
            await asyncio.start_server(partial(names["handle"], omni), "127.0.0.1", 0) as server,
        ):
            port = server.sockets[0].getsockname()[1]
            answer, refusal = await asyncio.gather(ask(port, b"A circle?\n"), ask(port, b"\n"))
            assert len(answer.split()) > 10
            assert refusal.startswith(b"error: messages: hold no text")

            names["SAMPLING"] = SamplingParams(max_tokens=LONG)
            before = omni.counters()["thinker"]["decode_tokens"]
            await leave(port)
            while not omni.idle:
                await asyncio.sleep(0.01)
            assert omni.counters()["thinker"]["decode_tokens"] - before < LONG - 1

    asyncio.run(asyncio.wait_for(main(), PATIENCE_SECONDS))


def test_hidden_states_are_compared(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run("docs/howto/hidden_states.md")
    (similarity,) = re.findall(r"similarity (-?\d\.\d{3})", capsys.readouterr().out)
    assert -1 < float(similarity) < 1


def test_the_readme_answers_with_text_and_speech(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    names = run("README.md")
    assert len(capsys.readouterr().out.split()) > 10
    assert len(names["result"].tokens) <= 32
    assert soundfile.info("answer.wav").frames == len(names["result"].audio)


def test_sampling_parameters_apply_as_shown(run: Run) -> None:
    assert run("docs/sampling.md")["sampling"]["thinker"].stop == ("\n",)


def test_outputs_are_those_of_the_page(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    messages = [{"role": "user", "content": "A circle."}]
    with Omni(MODEL) as omni:
        names = run(
            "docs/outputs.md", omni=omni, messages=messages, model=MODEL, Omni=Omni, SamplingParams=SamplingParams
        )
    assert len(names["result"].tokens) > 10
    assert names["result"].codes.shape[1] == 4
    assert names["states"].prompt.shape[:2] == (2, names["states"].prompt_tokens)
    assert names["longer"].generated.shape[:2] == (1, 63)
    stages, modalities, *_, idle = capsys.readouterr().out.splitlines()
    assert stages == "['audio_encoder', 'vision_encoder', 'thinker', 'talker', 'code2wav']"
    assert modalities.startswith("('text', 'audio') ('ethan', ")
    assert idle == "True"
