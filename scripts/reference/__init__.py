"""The public surface, read from the sources without importing them: its list, and the pages of the site's reference."""
