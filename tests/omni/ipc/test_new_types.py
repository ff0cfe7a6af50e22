"""Messages of struct types that several threads meet for the first time at once."""

from pathlib import Path

from tests.support.new_types import assert_new_types_at_once


def test_threads_may_decode_a_new_type_at_once(tmp_path: Path) -> None:
    sent = "(codec := Codec(Typed, inline_bytes=None)).decode(*codec.encode(Typed(given))).value"
    assert_new_types_at_once(tmp_path, "from omni.ipc import Codec, Typed", sent)
