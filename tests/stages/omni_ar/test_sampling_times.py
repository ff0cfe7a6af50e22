"""Host time of `sample_tokens`, in the counters of a stage."""

from collections.abc import Callable

import pytest

from omni.utils.duration_counts import DurationCounts
from omni_ar.options import ArOptions
from omni_ar.run import worker
from tests.support.ar_driver import ArDriver
from tests.support.small_text import SmallText


class SteppedClock:
    def __init__(self) -> None:
        self.now = 0

    def perf_counter_ns(self) -> int:
        return self.now

    def taking(self, nanoseconds: list[int], call: Callable[..., object]) -> Callable[..., object]:
        """The call, which takes each of these times in turn, then none."""

        def timed(*given: object) -> object:
            self.now += nanoseconds.pop(0) if nanoseconds else 0
            return call(*given)

        return timed


def test_the_time_of_each_sample_tokens_is_counted_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, clock = ArDriver(SmallText(), options=ArOptions(max_num_seqs=2, block_size=4)), SteppedClock()
    monkeypatch.setattr(worker, "time", clock)
    runner = driver.runner
    sampling = [95_000, 130_000, 130_400, 8_500]
    monkeypatch.setattr(runner, "execute_model", clock.taking([7_000_000] * 4, runner.execute_model))
    monkeypatch.setattr(runner, "sample_tokens", clock.taking(sampling, runner.sample_tokens))
    driver.ask("a", [5, 9, 2, 44], max_tokens=4)
    driver.run()
    counters = driver.worker.counters()
    assert counters["steps"] == 4
    times = DurationCounts.of("sample_tokens", counters)
    assert times.numbers("took") == {
        "took_us": 363,
        "took_us_10": 1,
        "took_us_100": 1,
        "took_us_130": 1,
        "took_us_140": 1,
    }
