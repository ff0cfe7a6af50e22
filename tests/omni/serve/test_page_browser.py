"""The page in a real browser: its buttons, its microphone, and what its audio graph plays."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import soxr
from numpy.typing import NDArray
from PIL import Image

from omni import AsyncOmni
from omni.frontend.base import AudioPart, Chat, Prepared
from tests.omni.serve.http_server import STRICT, Served, echo_omni, served
from tests.support.browser import Page, browser
from tests.support.echo_family import EchoFrontend, echo_model
from tests.support.entry_points import REPOSITORY
from tests.support.reference import tiny_checkpoint
from tests.support.tiny_omni import SHAPE, tiny_plugins

pytestmark = [pytest.mark.browser, pytest.mark.thorough]

QUESTION = REPOSITORY / "examples" / "assets" / "question.wav"
RATE = 24000

# Beside each connection to the speakers, one to a worklet that keeps every sample; `heard` gives them as 16-bit PCM.
LISTENER = """
const source = `registerProcessor("listener", class extends AudioWorkletProcessor {
  constructor() { super(); this.kept = []; this.port.onmessage = () => this.port.postMessage(this.kept); }
  process([channels]) { if (channels[0]) this.kept.push(channels[0].slice()); return true; }
})`;
const connect = AudioNode.prototype.connect;
AudioNode.prototype.connect = function (to, ...rest) {
  if (to instanceof AudioDestinationNode) {
    const url = URL.createObjectURL(new Blob([source], {type: "text/javascript"}));
    window.listening = this.context.audioWorklet.addModule(url).then(() => {
      const node = new AudioWorkletNode(this.context, "listener", {numberOfOutputs: 0});
      connect.call(this, node);
      return node;
    });
  }
  return connect.call(this, to, ...rest);
};
window.heard = async () => {
  const node = await window.listening;
  const kept = await new Promise((resolve) => {
    node.port.onmessage = ({data}) => resolve(data);
    node.port.postMessage(0);
  });
  const all = new Int16Array(kept.length * 128);
  kept.forEach((part, i) => part.forEach((sample, j) => (all[i * 128 + j] = Math.round(sample * 32768))));
  const bytes = new Uint8Array(all.buffer);
  let text = "";
  for (let i = 0; i < bytes.length; i += 4096) text += String.fromCharCode(...bytes.subarray(i, i + 4096));
  return btoa(text);
};
"""


@pytest.fixture(scope="module")
def tab() -> Iterator[Page]:
    with browser(QUESTION) as page:
        yield page


@pytest.fixture(scope="module")
def burst(echo_folder: Path) -> Iterator[Served]:
    """Writes a whole answer at once: a gap in it is the page's, not that of a machine that is busy."""
    with served(echo_omni(echo_folder, **{"writer.tokens_per_tick": 1000})) as it:
        yield it


@pytest.fixture
def page(tab: Page, echo: Served) -> Iterator[Page]:
    """The page of the echo server, connected. At the end its console is empty, and the server holds no memory."""
    tab.console.clear()
    tab.size(1280, 800)
    opened(tab, echo)
    yield tab
    assert tab.console == []
    tab.open("about:blank")
    echo.assert_nothing_held()


def opened(page: Page, server: Served) -> None:
    page.open(server.url)
    page.until("document.querySelector('#connection').dataset.state === 'up'")


def say(page: Page, text: str) -> None:
    page.run("document.querySelector('#text').focus()")
    page.type(text)
    page.press("Enter")


def last_answer(page: Page, state: str = "done") -> str:
    """The text of the last answer, once it is in that state."""
    page.until(f"[...document.querySelectorAll('.turn')].at(-1)?.dataset.state === '{state}'")
    return str(page.run("[...document.querySelectorAll('.turn')].at(-1).querySelector('.text').textContent"))


def played(page: Page) -> None:
    page.until("document.querySelector('#stop').hidden")


def limited(page: Page, tokens: int) -> None:
    page.run(f"document.querySelector('#tokens').value = {tokens}")


def played_sound(page: Page) -> NDArray[np.int16]:
    """The sound that the audio graph played, from the first sample that is not silence to the last."""
    samples = np.frombuffer(base64.b64decode(page.run("heard()")), np.int16)
    (loud,) = np.nonzero(samples)
    return samples[loud[0] : loud[-1] + 1]


def test_a_spoken_question_is_heard_and_answered_in_sound(
    tab: Page, burst: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    chats: list[Chat] = []
    prepare = EchoFrontend.prepare

    def keeping(self: EchoFrontend, chat: Chat) -> Prepared:
        chats.append(chat)
        return prepare(self, chat)

    monkeypatch.setattr(EchoFrontend, "prepare", keeping)
    opened(tab, burst)
    limited(tab, 100)
    tab.click("#talk")
    tab.until("parseFloat(document.querySelector('#seconds').textContent) > 1.5")
    tab.click("#talk")
    answer = last_answer(tab)
    played(tab)
    (part,) = chats[0].messages[0].content
    assert isinstance(part, AudioPart)
    assert answer.startswith(f"<{len(part.samples)} samples>")
    # The microphone, the browser's processing of a voice, the file and the server's resampling lie between.
    asked, rate = soundfile.read(QUESTION, dtype="float32")
    asked = soxr.resample(asked, rate, 16000)[: len(part.samples)]
    likeness = (
        np.abs(np.correlate(part.samples, asked, "full")).max() / np.linalg.norm(asked) / np.linalg.norm(part.samples)
    )
    assert likeness > 0.5
    assert tab.text("#underruns") == "0"
    assert tab.text("#first-audio").endswith(" ms")
    assert float(tab.text("#rtf")) > 0
    tab.open("about:blank")


def test_the_audio_graph_plays_the_answer_without_a_gap(tab: Page, burst: Served) -> None:
    """Sample for sample. The policy is off, for the listener alone."""
    text = "The quick brown fox jumps over the lazy dog. " * 6
    with burst.client() as client:
        answer: Any = client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": text.strip()}],
            modalities=["text", "audio"],
            audio={"voice": "low", "format": "pcm16"},
        )
    expected = np.frombuffer(base64.b64decode(answer.choices[0].message.audio.data), "<i2")
    tab.call("Page.setBypassCSP", enabled=True)
    script = tab.call("Page.addScriptToEvaluateOnNewDocument", source=LISTENER)["identifier"]
    try:
        opened(tab, burst)
        say(tab, text)
        assert last_answer(tab) == text.strip()
        played(tab)
        samples = played_sound(tab)
        assert tab.text("#underruns") == "0"
        slack = float(tab.text("#slack").removesuffix(" ms").replace(",", ""))
        assert slack > 0
    finally:
        tab.call("Page.setBypassCSP", enabled=False)
        tab.call("Page.removeScriptToEvaluateOnNewDocument", identifier=script)
    (loud,) = np.nonzero(expected)
    np.testing.assert_array_equal(samples, expected[loud[0] : loud[-1] + 1])
    assert len(samples) > 2 * RATE


@pytest.mark.slow
def test_a_model_of_speech_answers_a_recording_and_a_picture(tab: Page) -> None:
    """A tiny Qwen3-Omni, all of whose stages have a lane."""
    folder = tiny_checkpoint(3, max_positions=512, **SHAPE)
    with served(AsyncOmni(folder, device="cpu", plugins=tiny_plugins(), overrides=STRICT)) as it:
        opened(tab, it)
        tab.choose("#file", [REPOSITORY / "examples" / "assets" / "shapes.png"])
        tab.until("document.querySelectorAll('#pictures img').length === 1")
        limited(tab, 40)
        tab.click("#talk")
        tab.until("parseFloat(document.querySelector('#seconds').textContent) > 1.5")
        tab.click("#talk")
        assert last_answer(tab)
        played(tab)
        assert tab.text("#first-audio").endswith(" ms")
        stages = tab.run("[...document.querySelectorAll('#stages li')].map((item) => item.dataset.stage)")
        assert stages == [stage.name for stage in it.omni.pipeline.stages]
        tab.open("about:blank")


def test_a_gap_is_counted_and_only_a_gap(page: Page) -> None:
    """The player alone: a quarter of a second, a pause that is longer, a quarter of a second."""
    page.run("""
        (async () => {
          const { Player } = await import("/page/player.js");
          window.reports = [];
          const player = new Player();
          await player.open();
          const turn = player.begin((report) => reports.push(report));
          const half = () => player.push(turn, new Float32Array(6000).fill(0.5));
          half();
          await new Promise((resolve) => setTimeout(resolve, 900));
          half();
          player.end(turn);
        })()
    """)
    page.until("reports.at(-1).finished")
    report = page.run("reports.at(-1)")
    assert (report["underruns"], report["played"], report["least"]) == (1, 0.5, 0)


def test_pictures_are_chosen_dropped_and_pasted(page: Page, tmp_path: Path) -> None:
    file = tmp_path / "red.png"
    Image.new("RGB", (6, 4), "red").save(file)
    data = base64.b64encode(file.read_bytes()).decode()
    page.choose("#file", [file])
    page.until("document.querySelectorAll('#pictures img').length === 1")
    given = f"""
        const bytes = Uint8Array.from(atob("{data}"), (letter) => letter.charCodeAt(0));
        const files = new DataTransfer();
        files.items.add(new File([bytes], "red.png", {{type: "image/png"}}));
    """
    page.run(f"(() => {{ {given} document.dispatchEvent(new DragEvent('drop', {{dataTransfer: files}})) }})()")
    page.until("document.querySelectorAll('#pictures img').length === 2")
    page.run(f"(() => {{ {given} document.dispatchEvent(new ClipboardEvent('paste', {{clipboardData: files}})) }})()")
    page.until("document.querySelectorAll('#pictures img').length === 3")
    page.click("#pictures figure:last-child button")
    page.until("document.querySelectorAll('#pictures img').length === 2")
    say(page, "two")
    assert last_answer(page) == "<6x4>|<6x4>|two"
    assert page.run("document.querySelectorAll('.turn.user img').length") == 2
    assert page.run("[...document.querySelectorAll('.turn.user img')].every((image) => image.naturalWidth === 6)")


def test_another_file_than_a_picture_is_refused_on_the_page(page: Page, tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("x")
    page.choose("#file", [file])
    page.until("document.querySelector('#notice').textContent === 'notes.txt is not a picture.'")
    assert page.run("document.querySelectorAll('#pictures img').length") == 0


def test_stop_frees_the_server_and_silences_the_page(page: Page, echo: Served) -> None:
    limited(page, 100_000)
    say(page, "on and on ")
    page.until("document.querySelector('.turn.assistant .wave') !== null")
    page.until("document.querySelector('#stages [data-stage=writer]').dataset.busy === 'true'")
    page.until("document.querySelector('#under-way').textContent === '1 answer under way'")
    assert echo.server.limits.in_flight == 1
    page.click("#stop")
    echo.assert_nothing_held()
    before = last_answer(page, "stopped")
    page.until("document.querySelector('#stages [data-stage=writer]').dataset.busy === 'false'")
    assert last_answer(page, "stopped") == before
    assert page.run("document.querySelector('#stop').hidden")


def test_escape_stops_too_and_the_chat_goes_on(page: Page, echo: Served) -> None:
    limited(page, 100_000)
    say(page, "on")
    page.until("document.querySelector('.turn.assistant .text').textContent.length > 4")
    page.press("Escape")
    echo.assert_nothing_held()
    kept = last_answer(page, "stopped")
    limited(page, 4)
    say(page, "two")
    assert last_answer(page) == f"on|{kept}"[:4]


def test_a_chat_has_its_turns_until_a_new_one_begins(page: Page) -> None:
    page.run("document.querySelector('#system').value = 'be brief'")
    say(page, "one")
    assert last_answer(page) == "be brief|one"
    say(page, "two")
    assert last_answer(page) == "be brief|one|be brief|one|two"
    page.click("#clear")
    page.run("document.querySelector('#system').value = ''")
    say(page, "three")
    assert last_answer(page) == "three"


def test_an_answer_is_played_again(page: Page) -> None:
    say(page, "again " * 12)
    last_answer(page)
    played(page)
    page.click(".again")
    page.until("document.querySelector('.wave output').textContent.includes('/')")
    page.until("!document.querySelector('.wave output').textContent.includes('/')")


def test_an_error_is_shown_and_can_be_tried_again(tab: Page, echo: Served) -> None:
    opened(tab, echo)
    say(tab, "crash")
    last_answer(tab, "failed")
    assert "the server failed while it answered" in tab.text(".turn.assistant .foot")
    tab.click(".retry")
    last_answer(tab, "failed")
    assert tab.run("document.querySelectorAll('.turn').length") == 2


def test_the_page_comes_back_after_the_server_was_away(tab: Page, echo_folder: Path) -> None:
    with served(echo_omni(echo_folder)) as first:
        port = int(first.url.rpartition(":")[2])
        opened(tab, first)
        say(tab, "before")
        assert last_answer(tab) == "before"
    tab.until("document.querySelector('#connection').dataset.state === 'down'")
    say(tab, "nobody")
    last_answer(tab, "failed")
    with served(echo_omni(echo_folder), port=port):
        tab.until("document.querySelector('#connection').dataset.state === 'up'")
        tab.click(".retry")
        assert last_answer(tab) == "before|before|nobody"


def test_a_key_is_asked_for_and_kept_for_the_tab(tab: Page, echo_folder: Path) -> None:
    with served(echo_omni(echo_folder), api_keys=("right",)) as it:
        tab.open(it.url)
        for key in ("wrong", "right"):
            tab.until("document.querySelector('#ask-key').open")
            tab.run("document.querySelector('#key').select()")
            tab.type(key)
            tab.press("Enter")
            if key == "wrong":
                tab.until("!document.querySelector('#key-wrong').hidden")
        tab.until("document.querySelector('#connection').dataset.state === 'up'")
        say(tab, "open")
        assert last_answer(tab) == "open"
        opened(tab, it)
        assert tab.run("[sessionStorage.length, localStorage.length, document.cookie]") == [1, 0, ""]
        tab.open("about:blank")


def test_a_model_of_text_has_no_controls_of_sound(tab: Page, tmp_path: Path) -> None:
    with served(echo_omni(echo_model(tmp_path, speaks=False))) as it:
        opened(tab, it)
        shown = "[...document.querySelectorAll('.audio-out, .media-in')].filter((e) => e.checkVisibility()).length"
        assert tab.run(shown) == 0
        say(tab, "text alone")
        assert last_answer(tab) == "text alone"
        assert tab.run("document.querySelector('.wave')") is None
        tab.open("about:blank")


@pytest.mark.parametrize("width", [340, 700, 1600])
def test_every_width_fits_and_every_control_has_a_name(page: Page, width: int) -> None:
    page.size(width, 720)
    page.click("#speak")
    say(page, "a" * 300)
    last_answer(page)
    assert page.run("document.documentElement.scrollWidth") <= width
    outside = """[...document.querySelectorAll('button, input, select, textarea')].filter((e) => e.checkVisibility())
        .filter((e) => { const box = e.getBoundingClientRect(); return box.left < 0 || box.right > innerWidth }).length"""
    assert page.run(outside) == 0
    tree = page.call("Accessibility.getFullAXTree")["nodes"]
    controls = {"button", "textbox", "combobox", "checkbox", "spinbutton"}
    unnamed = [
        node
        for node in tree
        if not node["ignored"] and node["role"]["value"] in controls and not node.get("name", {}).get("value")
    ]
    assert not unnamed, json.dumps(unnamed)


def test_the_keyboard_reaches_every_control_in_order(page: Page) -> None:
    reached = []
    for _ in range(12):
        reached.append(page.run("document.activeElement.id"))
        page.press("Tab")
    order = ["text", "talk", "send", "speak", "voice", "tokens", "system"]
    assert [name for name in reached if name in order][: len(order)] == order
