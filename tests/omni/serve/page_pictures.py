"""Makes the pictures of the page in docs/serving.md: `python -m tests.omni.serve.page_pictures CHECKPOINT` of a tiny Qwen3-Omni."""

import io
import sys
import time
from pathlib import Path

from PIL import Image

from omni import AsyncOmni
from tests.omni.serve.http_server import STRICT, served
from tests.support.browser import Page, browser
from tests.support.entry_points import REPOSITORY

ASSETS = REPOSITORY / "examples" / "assets"
PICTURES = REPOSITORY / "docs" / "pictures"
# A tiny random model would end after a word or two.
LONG: dict[str, object] = {
    "thinker.sampling.min_tokens": 60,
    "thinker.sampling.max_tokens": 60,
    "talker.sampling.min_tokens": 220,
    "talker.sampling.max_tokens": 220,
}


def main(checkpoint: str) -> None:
    omni = AsyncOmni(checkpoint, device="cpu", overrides={**STRICT, **LONG})
    with served(omni, model_names=("tiny-qwen3-omni",)) as it, browser(ASSETS / "question.wav") as page:
        page.size(1280, 800, dark=True)
        page.open(it.url)
        page.until("document.querySelector('#connection').dataset.state === 'up'")
        page.choose("#file", [ASSETS / "shapes.png"])
        page.until("document.querySelectorAll('#pictures img').length === 1")
        page.click("#talk")
        page.until("parseFloat(document.querySelector('#seconds').textContent) > 1.7")
        save(page, "page_recording.png")
        page.size(1280, 800)
        page.click("#talk")
        page.run("document.querySelector('#text').focus()")
        page.until("parseFloat(document.querySelector('.turn.assistant output')?.textContent) > 1")
        save(page, "page.png")
        page.click("#stop")


def save(page: Page, name: str) -> None:
    time.sleep(0.3)  # until what a click began to move stands still
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    picture.quantize(256, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(
        PICTURES / name, optimize=True
    )


if __name__ == "__main__":
    main(str(Path(sys.argv[1])))
