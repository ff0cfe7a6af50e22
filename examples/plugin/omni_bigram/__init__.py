"""A family of language models that know which byte follows which."""
