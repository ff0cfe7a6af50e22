"""Sampling parameters that an engine's process has accepted are not sent to it again; others may not be sendable."""

import pytest

from omni.process.messages import GetState
from omni.process.queries import CheckedParameters, EngineQueries
from omni.sampling import SamplingParams


def test_parameters_are_known_at_any_seed():
    checked = CheckedParameters()
    checked.add({"thinker": SamplingParams(top_k=5, seed=1), "talker": SamplingParams()})
    assert {"thinker": SamplingParams(top_k=5), "talker": SamplingParams(seed=2)} in checked
    assert {"thinker": SamplingParams(top_k=5, seed=2**62), "talker": SamplingParams()} in checked


@pytest.mark.parametrize(
    "others",
    [
        {"thinker": SamplingParams(top_k=6)},
        {"thinker": SamplingParams(top_k=5, max_tokens=1)},
        {"talker": SamplingParams(top_k=5)},
        {"thinker": SamplingParams(top_k=5), "talker": SamplingParams()},
    ],
)
def test_other_parameters_are_not_known(others: dict[str, SamplingParams]):
    checked = CheckedParameters()
    checked.add({"thinker": SamplingParams(top_k=5)})
    assert others not in checked


def test_arguments_of_plugins_are_asked_about_every_time():
    sampling = {"thinker": SamplingParams(processors={"own": {"object": object()}})}
    checked = CheckedParameters()
    checked.add(sampling)
    assert sampling not in checked


def test_an_engine_does_not_count_as_asked_by_a_query_that_cannot_be_sent():
    """A stopped engine that is asked nothing is left alone."""

    def refuse(query: object, extra: int | None) -> None:
        raise TypeError("an object cannot be sent")

    queries = EngineQueries(refuse)
    with pytest.raises(TypeError, match="cannot be sent"):
        queries.ask(GetState)
    assert not queries.open
