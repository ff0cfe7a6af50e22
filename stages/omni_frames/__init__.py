"""Transfer of code frames from a producer's memory into a consumer's rows, and of samples to the host."""
