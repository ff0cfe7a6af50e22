"""Draws examples/assets/shapes.png: python scripts/make_assets.py"""

from pathlib import Path

from PIL import Image, ImageDraw

ASSETS = Path(__file__).parent.parent / "examples" / "assets"


def draw_shapes() -> Image.Image:
    """A red circle, a blue square and a green triangle over a gray ground, under a pale sky. 384 x 256 pixels, RGB."""
    image = Image.new("RGB", (384, 256), (214, 232, 246))
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, 176, 383, 255), fill=(150, 148, 140))
    draw.ellipse((28, 88, 136, 196), fill=(206, 48, 44))
    draw.rectangle((150, 96, 242, 196), fill=(38, 84, 178))
    draw.polygon(((308, 84), (256, 196), (360, 196)), fill=(46, 142, 74))
    return image


if __name__ == "__main__":
    draw_shapes().save(ASSETS / "shapes.png", optimize=True)
