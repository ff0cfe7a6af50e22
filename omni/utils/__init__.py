"""Small helpers that no other folder owns."""
