"""Sound in answers: voices, and formats of files."""
