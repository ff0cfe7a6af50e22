"""Bodies and events whose struct types several threads meet for the first time at once: realtime sessions read items in threads."""

from pathlib import Path

from tests.support.new_types import assert_new_types_at_once


def test_threads_may_convert_to_a_new_type_at_once(tmp_path: Path) -> None:
    converted = "convert(msgspec.to_builtins(given), outer)"
    assert_new_types_at_once(tmp_path, "from omni.serve.body import convert", converted)
