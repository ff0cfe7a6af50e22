"""A lock for the first use of a struct type by msgspec."""

import threading

STRUCT_TYPES = threading.RLock()
"""Hold it while msgspec may meet a type for the first time and other threads may use that type: when a decoder is made, or in
`convert`. msgspec describes a type at its first use, and publishes the description before it is complete. So two threads with the
same new type end the process by a segmentation fault (measured with msgspec 0.22)."""
