"""Prints the public surface. `make surface` writes it to the snapshot that a test compares."""

from reference.surface import surface

if __name__ == "__main__":
    print(surface(), end="")
