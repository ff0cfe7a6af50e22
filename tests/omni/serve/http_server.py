"""A server for tests: uvicorn in a thread, at a free port."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import uvicorn
from openai import AsyncOpenAI, OpenAI

from omni import AsyncOmni
from omni.serve.options import ServeOptions
from omni.serve.run import HttpServer, address_of, bound
from omni.serve.server import Server
from tests.support.echo_family import echo_plugins, eventually
from tests.support.patience import PATIENCE_SECONDS

STRICT: dict[str, object] = {"frontend.media.strict": True}


@dataclass(frozen=True, slots=True)
class Served:
    """url: of the server. server: what its handlers share. http: what runs it."""

    url: str
    server: Server
    http: HttpServer

    @property
    def omni(self) -> AsyncOmni:
        return self.server.omni

    def client(self, *, key: str = "none", retries: int = 0) -> OpenAI:
        return OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=retries, timeout=PATIENCE_SECONDS)

    def async_client(self) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE_SECONDS)

    def post(self, path: str, **arguments: object) -> httpx.Response:
        return httpx.post(f"{self.url}{path}", timeout=PATIENCE_SECONDS, **arguments)  # type: ignore[arg-type]

    def get(self, path: str, **headers: str) -> httpx.Response:
        return httpx.get(f"{self.url}{path}", timeout=PATIENCE_SECONDS, headers=headers)

    def assert_nothing_held(self) -> None:
        """Neither places and bodies in the server, nor anything at a stage."""
        limits = self.server.limits
        assert eventually(lambda: (limits.in_flight, limits.held_bytes) == (0, 0)), vars(limits)
        assert eventually(lambda: self.omni.idle)
        assert eventually(lambda: not any(count for usage in self.omni.usage().values() for count in usage.values()))


class _Lasting(HttpServer):
    """Continues when the engine has failed, as `create_app` in a program of one's own."""

    async def on_tick(self, counter: int) -> bool:
        return await uvicorn.Server.on_tick(self, counter)


@contextmanager
def served(omni: AsyncOmni, **options: object) -> Iterator[Served]:
    """No memory is held at its end; then the model is closed. The server continues when the engine has failed."""
    settings = ServeOptions(**{"port": 0, "model_names": ("tiny",), **options})  # type: ignore[arg-type]
    listener = bound(settings)
    http = _Lasting(omni, settings)
    thread = threading.Thread(target=http.run, args=([listener],), name="test-server")
    thread.start()
    try:
        assert eventually(lambda: http.started)
        it = Served(address_of(listener), http.config.app.state.server, http)  # type: ignore[union-attr]
        yield it
        if omni.failure is None:
            it.assert_nothing_held()
    finally:
        http.should_exit = True
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()


def echo_omni(model: Path, **overrides: object) -> AsyncOmni:
    return AsyncOmni(model, device="cpu", plugins=echo_plugins(), overrides={**STRICT, **overrides})
