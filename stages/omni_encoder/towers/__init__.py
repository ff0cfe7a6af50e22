"""Bases of towers: values that depend on sizes alone are computed on the host in advance."""
