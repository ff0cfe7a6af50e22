"""What the server and the stages do, for Prometheus."""

from omni.serve.metrics.server_metrics import ServerMetrics

__all__ = ["ServerMetrics"]
