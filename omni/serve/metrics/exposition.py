"""A registry as the text that Prometheus reads."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector


def exposition(registry: CollectorRegistry) -> bytes:
    """Without the `_created` samples of counters and histograms, which are series of their own in this format."""
    return generate_latest(_WithoutCreated(registry))


class _WithoutCreated(Collector):
    """prometheus_client's own switch, `disable_created_metrics`, would also apply to the registries of the embedding program."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for metric in self._registry.collect():
            # The metric is made for this reading alone.
            metric.samples = [sample for sample in metric.samples if sample.name != f"{metric.name}_created"]
            yield metric
