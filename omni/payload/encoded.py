"""The payload of encoders."""

import msgspec


class Encoded(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a payload with the encoder's output for the request's item of this index. The tensors are shared: read
    only."""

    index: int
