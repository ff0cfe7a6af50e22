"""What the benchmarks of stages share: engines over dummy weights, traffic, clocks and reports."""
