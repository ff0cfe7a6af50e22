"""The limit of waits in tests; on a quiet machine they end at once."""

PATIENCE_SECONDS = 300.0
"""For a process, a thread or an event: on the busiest machine only a hang takes longer. Below the `timeout` of a whole test in
pyproject.toml, so that the waiting code reports the hang."""
