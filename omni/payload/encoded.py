"""What encoders tell other stages."""

import msgspec


class Encoded(msgspec.Struct, frozen=True, kw_only=True):
    """The payload's tensors are what an encoder made of the request's item of this index. Shared, so not to be written."""

    index: int
