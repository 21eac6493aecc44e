"""Emoji in several styles as a data set: which category is it, in a style that training has not seen?

    npm pack emoji-datasource-google@15.1.2        # likewise -twitter, -apple, -facebook; unpack each
    python evidence/emoji/prepare.py google/package twitter/package apple/package facebook/package --out build/emoji
    dspreg data verify folder:build/emoji

One domain a style, one class a Unicode category (nine of them), the 64-pixel pictures flattened on white. Only emoji
that all styles have, and none of their variants by skin tone, so that all domains hold the same emoji.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from PIL import Image

LEFT_OUT = {"Component"}  # skin tones and hair, five pictures


def style_of(package: Path) -> str:
    (folder,) = [each for each in (package / "img").iterdir() if each.is_dir()]
    return folder.name


def common_emoji(packages: list[Path]) -> list[tuple[str, str]]:
    """File name and category of every emoji that all packages have a picture of."""
    listed = json.loads((packages[0] / "emoji.json").read_text(encoding="utf-8"))
    return [
        (each["image"], each["category"])
        for each in listed
        if each["category"] not in LEFT_OUT
        and all((package / "img" / style_of(package) / "64" / each["image"]).is_file() for package in packages)
    ]


def flatten(source: Path) -> Image.Image:
    picture = Image.open(source).convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert("RGB")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="+", type=Path, help="unpacked packages emoji-datasource-…")
    parser.add_argument("--out", type=Path, required=True, help="folder of the data set")
    options = parser.parse_args()
    emoji = common_emoji(options.packages)
    for package in options.packages:
        style = style_of(package)
        for name, category in emoji:
            folder = options.out / style / category.lower().replace(" & ", "-").replace(" ", "-")
            folder.mkdir(parents=True, exist_ok=True)
            flatten(package / "img" / style / "64" / name).save(folder / name)
        print(f"{style}: {len(emoji):,} pictures")
    return 0


if __name__ == "__main__":
    sys.exit(main())
