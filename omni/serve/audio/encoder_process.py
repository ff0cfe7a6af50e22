"""A process of encoders. Imports no torch, so that it starts in a fraction of a second."""

from multiprocessing.connection import Connection

import msgspec
import numpy as np

from omni.serve.audio.av_encoder import CODECS, AvEncoder
from omni.serve.audio.encoder_messages import EncodeWork, ForgetEncoder, Reply, Request


class Encoders:
    """The files that are being written, by number."""

    def __init__(self) -> None:
        self._encoders: dict[int, AvEncoder] = {}

    def __len__(self) -> int:
        return len(self._encoders)

    def answer(self, request: Request) -> Reply | None:
        """Returns None for requests without a reply."""
        if isinstance(request, ForgetEncoder):
            self._encoders.pop(request.encoder, None)
            return None
        try:
            return Reply(self._encode(request))
        except Exception as error:
            self._encoders.pop(request.encoder, None)
            return Reply(b"", f"{type(error).__name__}: {error}")

    def _encode(self, work: EncodeWork) -> bytes:
        if work.first:
            self._encoders[work.encoder] = AvEncoder(CODECS[work.codec], work.sample_rate, whole=work.whole)
        encoder = self._encoders.get(work.encoder)
        if encoder is None:
            raise LookupError("the start of the file is gone, with the process that wrote it")
        data = encoder.push(np.frombuffer(work.samples, np.float32))
        if work.last:
            data += encoder.finish()
            del self._encoders[work.encoder]
        return data


def main(descriptor: int) -> None:
    """Answers until the other end is closed. descriptor: of a socket."""
    decoder, encoder, encoders = msgspec.msgpack.Decoder(Request), msgspec.msgpack.Encoder(), Encoders()
    with Connection(descriptor) as connection:
        while True:
            try:
                packet = connection.recv_bytes()
            except EOFError:
                return
            reply = encoders.answer(decoder.decode(packet))
            if reply is not None:
                connection.send_bytes(encoder.encode(reply))
