"""Messages between the server and its processes of encoders."""

import msgspec


class EncodeWork(msgspec.Struct, frozen=True, array_like=True, tag="work"):
    """Answered by a `Reply`. encoder: a number of the server's. codec: of `CODECS`. sample_rate: of the samples, in Hz. whole: of
    `AvEncoder`. first: makes the encoder. samples: float32, mono. last: the file ends with them."""

    encoder: int
    codec: str
    sample_rate: int
    whole: bool
    first: bool
    samples: bytes
    last: bool


class ForgetEncoder(msgspec.Struct, frozen=True, array_like=True, tag="forget"):
    """The file is no longer needed. There is no reply."""

    encoder: int


class Reply(msgspec.Struct, frozen=True, array_like=True):
    """data: of the file, that are ready. problem: why there is no more, empty without one."""

    data: bytes
    problem: str = ""


Request = EncodeWork | ForgetEncoder
