"""The simulated device: streams that run late and in any order, and a check of every memory access."""
