"""Metrics of the server and its stages, for Prometheus."""

from omni.serve.metrics.server_metrics import ServerMetrics

__all__ = ["ServerMetrics"]
