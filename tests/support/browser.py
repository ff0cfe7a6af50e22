"""A headless Chromium for tests, driven by the DevTools protocol over a pipe: no driver, and no package beside the browser."""

import base64
import fcntl
import itertools
import json
import os
import queue
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.patience import PATIENCE_SECONDS

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_ARGUMENTS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe"),
    *("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-extensions"),
    # A page that was left ends: else its sound and its streams stay, and its process waits behind the others.
    *(
        "--disable-features=BackForwardCache",
        "--disable-renderer-backgrounding",
        "--disable-background-timer-throttling",
    ),
    *("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream", "--hide-scrollbars"),
)


def chromium() -> str | None:
    """The path of the installed browser; `OMNI_CHROMIUM` names another."""
    return os.environ.get("OMNI_CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), None)


class Page:
    """The one tab of a browser. Errors and messages of its console are in `console`."""

    def __init__(self, write: int, read: int) -> None:
        self._write = write
        self._read = read
        self._numbers = itertools.count(1)
        self._answers: dict[int, queue.Queue[dict[str, Any]]] = {}
        self._session: str | None = None
        self.console: list[str] = []
        self._reader = threading.Thread(target=self._listen, name="test-browser", daemon=True)
        self._reader.start()
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "DOM"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: object) -> dict[str, Any]:
        """Raises AssertionError if the browser refuses it."""
        number = next(self._numbers)
        answer = self._answers[number] = queue.Queue(1)
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]
        result = answer.get(timeout=PATIENCE_SECONDS)
        assert "error" not in result, f"{method}: {result}"
        return result["result"]  # type: ignore[no-any-return]

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """The value of an expression, awaited if it is a promise."""
        result = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True, userGesture=True
        )
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def until(self, script: str) -> None:
        """Waits until an expression is true."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self.run(script):
            assert time.monotonic() < deadline, f"{script}\n{self.console}\n{self.run('document.body.innerText')}"
            # The page needs the time more than the test does.
            time.sleep(0.03)

    def text(self, selector: str) -> str:
        return str(self.run(f"document.querySelector({json.dumps(selector)})?.textContent ?? ''"))

    def click(self, selector: str) -> None:
        """A real click in the middle of an element."""
        box = f"document.querySelector({json.dumps(selector)}).getBoundingClientRect()"
        x, y = self.run(f"(({{x, y, width, height}}) => [x + width / 2, y + height / 2])({box})")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def press(self, key: str) -> None:
        codes = {"Enter": 13, "Escape": 27, "Tab": 9}
        code, text = codes[key], {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            given = text if kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **given)

    def choose(self, selector: str, files: Sequence[Path]) -> None:
        """Chooses files as a user does in the dialog."""
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(file) for file in files])

    def size(self, width: int, height: int, *, dark: bool = False, scale: float = 1) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False
        )
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def screenshot(self) -> bytes:
        """A PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def _listen(self) -> None:
        left = b""
        while data := os.read(self._read, 2**16):
            *messages, left = (left + data).split(b"\0")
            for message in map(json.loads, messages):
                if "id" in message:
                    self._answers.pop(message["id"]).put(message)
                elif message["method"] == "Runtime.consoleAPICalled":
                    said = [str(each.get("value", each.get("description"))) for each in message["params"]["args"]]
                    self.console.append(f"{message['params']['type']}: {' '.join(said)}")
                elif message["method"] == "Runtime.exceptionThrown":
                    self.console.append(f"exception: {json.dumps(message['params'])[:2000]}")
                elif message["method"] == "Log.entryAdded":
                    entry = message["params"]["entry"]
                    self.console.append(f"{entry['level']}: {entry['text']} {entry.get('url', '')}")


def _pipe(_: int) -> tuple[int, int]:
    """Both ends above the descriptors that the browser's are copied to."""
    ends = os.pipe()
    moved = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
    for end in ends:
        os.close(end)
    return moved[0], moved[1]


@contextmanager
def browser(microphone: Path | None = None) -> Iterator[Page]:
    """A fresh browser. microphone: a wav that it records, once; None gives beeps."""
    path = chromium()
    assert path is not None
    heard = [] if microphone is None else [f"--use-file-for-fake-audio-capture={microphone}%noloop"]
    # The browser reads commands from descriptor 3, and writes answers to 4.
    (to_read, to_write), (from_read, from_write) = map(_pipe, range(2))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [path, *_ARGUMENTS, f"--user-data-dir={profile}", *heard, "about:blank"]
        shell = ["bash", "-c", f'exec "$@" 3<&{to_read} 4>&{from_write}', "bash", *command]
        process = subprocess.Popen(shell, pass_fds=(to_read, from_write), stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(from_write)
        try:
            yield Page(to_write, from_read)
        finally:
            os.close(to_write)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
