"""Ask many things at once, from coroutines, and give one of them up.

python examples/many_requests.py MODEL [--folder answers]
"""

import argparse
import asyncio
from pathlib import Path

from omni import AsyncOmni, OmniError, SamplingParams

QUESTIONS = [
    "What is a circle?",
    "How many sides has a square?",
    "Which color is the sky?",
    "",  # a bad request: it fails, and no other does
]


async def answer(omni: AsyncOmni, number: int, question: str, folder: Path) -> None:
    """One whole answer."""
    try:
        result = await omni.complete(question, sampling=SamplingParams(max_tokens=64, seed=number))
    except OmniError as error:
        print(f"{number}: {error}")
        return
    print(f"{number}: {result.text.strip()}")
    if result.audio is not None:
        result.save(folder / f"{number}.wav")


async def listen(omni: AsyncOmni, question: str, started: asyncio.Event) -> None:
    """An answer in pieces. When the task is cancelled, the request is, and all it held is free for the others."""
    try:
        async for _ in omni.generate(question):
            started.set()
    finally:
        # A failed request has no first piece.
        started.set()


async def main() -> None:
    parser = argparse.ArgumentParser(description="Ask many things at once.")
    parser.add_argument("model")
    parser.add_argument("--folder", type=Path, default=Path("answers"))
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)

    # Loading takes a while; in a thread it does not hold up the event loop.
    async with await asyncio.to_thread(AsyncOmni, arguments.model) as omni:
        started = asyncio.Event()
        impatient = asyncio.create_task(listen(omni, "Tell me a long story.", started))
        others = [answer(omni, number, question, arguments.folder) for number, question in enumerate(QUESTIONS)]
        waiting = asyncio.gather(*others)

        await started.wait()
        impatient.cancel()
        await waiting
        print(f"the story was given up: {impatient.cancelled()}")


if __name__ == "__main__":
    asyncio.run(main())
