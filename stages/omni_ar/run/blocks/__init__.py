"""The stage's paged memory: blocks, the cached prefixes in them, and their payload that consumers still need."""
