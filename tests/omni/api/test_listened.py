"""Whether someone plays an answer while it is made, on its way to the engine."""

import pytest

from omni import Omni
from omni.engine import EngineRequest, Sink
from omni.process.messages import Submit


def test_an_answer_that_is_read_as_a_whole_has_no_listener(omni: Omni, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, listened = omni._client.engine, list[bool]()
    submit = engine.submit

    def seen(request: EngineRequest, sink: Sink) -> None:
        listened.append(request.has_listener)
        submit(request, sink)

    monkeypatch.setattr(engine, "submit", seen)
    list(omni.generate("hello"))
    omni.generate("hello", stream=False)
    assert listened == [True, False]


@pytest.mark.parametrize("listened", [True, False])
def test_another_process_knows_of_the_listener(listened: bool) -> None:
    request = EngineRequest("a", frozenset({"audio"}), {}, has_listener=listened)
    assert Submit.of(request).request() == request
