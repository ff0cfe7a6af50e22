"""Threads of a user's program that work beside its requests."""

import hashlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from bench.request_media import PHOTOGRAPHS, photograph
from omni.api.request_queue import THREADS
from omni.frontend.base import Chat, Frontend
from omni.frontend.messages import parse_messages
from omni.media import MediaOptions


class Neighbours:
    """The work beside the requests. frontend: a second one of the same family, for pictures."""

    def __init__(self, frontend: Frontend) -> None:
        self._frontend = frontend
        self._photographs = [photograph(salt) for salt in range(PHOTOGRAPHS)]
        self.prepared = 0

    @contextmanager
    def beside(self, neighbour: str) -> Iterator[None]:
        """Runs the neighbour's threads."""
        stop = threading.Event()
        self.prepared = 0

        def python() -> None:
            count = 0
            while not stop.is_set():
                for number in range(10_000):
                    count += number % 7

        def digest() -> None:
            data = bytes(2**20)
            while not stop.is_set():
                hashlib.sha256(data).digest()

        def pictures() -> None:
            with ThreadPoolExecutor(THREADS) as pool:
                while not stop.is_set():
                    self.prepared += sum(pool.map(lambda index: self._prepare(index, stop), range(int(number))))

        kind, _, number = neighbour.partition(" ")
        works: dict[str, tuple[Callable[[], None], int]] = {
            "quiet": (python, 0),
            "media": (python, 0),
            "python": (python, int(number or 0)),
            "hash": (digest, int(number or 0)),
            "pictures": (pictures, 1),
        }
        work, many = works[kind]
        threads = [threading.Thread(target=work) for _ in range(many)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stop.set()
            for thread in threads:
                thread.join()

    def _prepare(self, index: int, stop: threading.Event) -> bool:
        if stop.is_set():
            return False
        content = [
            {"type": "image_url", "image_url": self._photographs[index % len(self._photographs)]},
            {"type": "text", "text": f"Describe picture {index}."},
        ]
        messages = parse_messages(
            [{"role": "user", "content": content}],
            sample_rate=self._frontend.sample_rate,
            names=self._frontend.takes_names,
            media=MediaOptions(),
        )
        self._frontend.prepare(Chat(messages, frozenset(("text", "audio")), None, {}, cache_salt=""))
        return True
