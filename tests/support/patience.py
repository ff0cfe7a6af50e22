"""How long tests wait for what comes at once on a quiet machine."""

PATIENCE_SECONDS = 300.0
"""For a process, a thread or an event: on the busiest machine only a hang takes longer. Below the `timeout` of a whole test in
pyproject.toml, so that what hangs is said by whoever waits for it."""
