"""`omni new`: a distribution to start a plugin from."""
