"""Execution of the stage: scheduler, runner, device state and worker. Models do not depend on it."""
