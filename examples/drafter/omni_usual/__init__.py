"""A drafter for omni: each token is expected to be the one that came after the same token before."""
