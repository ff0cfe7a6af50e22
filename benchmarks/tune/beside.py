"""Importing this makes `bench`, which the benchmarks in the folder above share, importable to these scripts."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
