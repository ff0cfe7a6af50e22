"""A plugin that works: `writer` writes the prompt, `singer` sings it. The tests break copies of it."""
