"""Mimi: a causal neural codec (Défossez et al., 2024, arXiv:2410.00037). Its decoder streams, its encoder takes whole clips."""
