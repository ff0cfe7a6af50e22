"""Files over HTTP, from a process of its own."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

_SERVER = """
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

asked = []

class Handler(SimpleHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/requests":
            self.send_response(200)
            self.end_headers()
            self.wfile.write(str(len(asked)).encode())
        else:
            asked.append(self.path)
            super().do_GET()

    def log_message(self, *arguments):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=sys.argv[1]))
print(server.server_address[1], flush=True)
server.serve_forever()
"""


@dataclass(frozen=True, slots=True)
class MediaHost:
    """url: the address below which the files are."""

    url: str

    def requests(self) -> int:
        """The requests for files so far."""
        return int(httpx.get(f"{self.url}/requests").text)


@contextmanager
def hosting(files: Mapping[str, bytes]) -> Iterator[MediaHost]:
    """The files, by their names, until the end of the block."""
    with tempfile.TemporaryDirectory() as folder:
        for name, data in files.items():
            (Path(folder) / name).write_bytes(data)
        command = [sys.executable, "-c", _SERVER, folder]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                yield MediaHost(f"http://127.0.0.1:{int(process.stdout.readline())}")
            finally:
                process.kill()
