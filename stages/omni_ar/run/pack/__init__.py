"""Packs a plan into host arrays: all host inputs of a step's phases, in one copy."""
