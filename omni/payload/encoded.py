"""The payload of encoders."""

import msgspec


class Encoded(msgspec.Struct, frozen=True, kw_only=True):
    """The tensors are the encoder's output for the request's item of this index. They are shared: read only."""

    index: int
