"""Shared code of the benchmarks of stages: engines over dummy weights, traffic, clocks and reports."""
