"""The thread of an engine's process that compiles grammars, for all requests."""

import sys
import threading
from typing import cast

import pytest

from omni.errors import StageError
from omni.frontend.host_rules import HostRulesBuilder
from omni.ipc import Channel, Codec
from omni.process.messages import FromEngine, ToEngine
from omni.process.server import EngineServer
from omni.sampling import HostRules, TextRules
from tests.support.echo_family import eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")


class Panic(BaseException):
    """As of a library in another language."""


class PanickingRules:
    """Builds rules, except the first ones."""

    def __init__(self) -> None:
        self._panics = True

    def build(self, rules: TextRules) -> HostRules:
        if self._panics:
            self._panics = False
            raise Panic("at the first")
        return HostRules(None, ())


def test_a_panic_of_the_compiler_fails_its_request_alone():
    ours, theirs = Channel.pair()
    with ours, theirs:
        server = EngineServer(Channel(theirs, Codec(FromEngine), Codec(ToEngine)))
        server._rules = cast(HostRulesBuilder, PanickingRules())
        threading.Thread(target=server._compile, daemon=True).start()
        for request in ("first", "second"):
            server._jobs.put((request, {"writer": TextRules()}))
        assert eventually(lambda: len(server._built) == 2)
    (_, failed), (_, built) = server._built
    assert isinstance(failed, StageError)
    assert "Panic: at the first" in str(failed)
    assert built == {"writer": HostRules(None, ())}
