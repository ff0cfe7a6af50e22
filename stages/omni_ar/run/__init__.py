"""How the stage runs: scheduler, runner, device state and the worker around them. Not for model authors: they need none of it."""
