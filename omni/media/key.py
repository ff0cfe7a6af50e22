"""Keys of media: equal if and only if the content is."""

import hashlib

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def content_hash(content: NDArray[np.generic] | Image.Image) -> str:
    """32 hexadecimal digits of the dtype, shape and bytes. A picture hashes as the array of its pixels."""
    array = np.ascontiguousarray(content)
    digest = hashlib.blake2b(f"{array.dtype.str}{array.shape}".encode(), digest_size=16)
    digest.update(array.data)
    return digest.hexdigest()
