"""Small image files and trees of them, made on the spot."""

import io
import os
import struct
import zlib

import numpy as np
from PIL import Image


def picture(seed=0, size=(12, 9), mode="RGB"):
    """A smooth picture, so that JPEG keeps it well, that no other seed gives."""
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 256, (3, 3, 3), np.uint8))
    return small.resize(size, Image.Resampling.BICUBIC).convert(mode)


def encoded(image, kind="JPEG", **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def put(path, content=None, seed=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    if content is None:
        content = encoded(picture(seed), "PNG" if path.suffix.lower() == ".png" else "JPEG")
    path.write_bytes(content)
    return path


def tree(root, names):
    """Files below `root` by their names, each another picture."""
    for seed, name in enumerate(names):
        put(root / name, seed=seed)
    return root


def small_tree(root, domains=("art", "photo"), classes=("cat", "dog", "emu"), each=2):
    return tree(root, [f"{d}/{c}/{i}.jpg" for d in domains for c in classes for i in range(each)])


def bomb(width, height):
    """A PNG of a few bytes that claims width × height pixels."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")


def bad_files(folder):
    """About thirty files with image extensions that are no usable images → a word the reason must have."""
    folder.mkdir(parents=True, exist_ok=True)
    jpeg = encoded(picture(1, (64, 64)))
    png, webp, bmp = (encoded(picture(1, (64, 64)), kind) for kind in ("PNG", "WEBP", "BMP"))
    expected = {}

    def bad(name, content, word):
        (folder / name).write_bytes(content)
        expected[name] = word

    for share in (0.05, 0.3, 0.5, 0.7, 0.9, 0.97):
        for kind, whole in (("jpg", jpeg), ("png", png), ("webp", webp), ("bmp", bmp)):
            bad(f"cut{share}.{kind}", whole[: int(len(whole) * share)], "truncated")
    bad("empty.jpg", b"", "empty")
    bad("zeros.jpg", bytes(5000), "zeros")
    bad("page.jpg", b"\n<!DOCTYPE html><html><body>404</body></html>", "HTML")
    bad("page2.png", b"<html>Too many requests</html>", "HTML")
    bad("pointer.jpg", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "git-LFS")
    bad("text.png", b"hello, this is no picture", "neither JPEG")
    bad("really_a_gif.jpg", encoded(picture(), "GIF"), "GIF")
    bad("really_a_tiff.png", encoded(picture(), "TIFF"), "TIFF")
    bad("header_of_mac.jpg", b"\0\5\x16\7" + bytes(100), "macOS")
    for million in (70, 100, 150, 200):
        bad(f"bomb{million}.png", bomb(million * 1000, 1000), "pixels")
    bad("deep.png", encoded(Image.fromarray(np.full((4, 4), 40_000, np.uint16)), "PNG"), "8 bits")
    bad("damaged.png", png[:40] + bytes(30) + png[70:], "damaged")
    os.mkfifo(folder / "pipe.jpg")
    expected["pipe.jpg"] = "pipe"
    (folder / "loop.jpg").symlink_to("loop.jpg")
    expected["loop.jpg"] = "leads back to itself"
    (folder / "gone.jpg").symlink_to("nowhere.jpg")
    expected["gone.jpg"] = "nowhere.jpg"
    return expected


def good_files(folder):
    """Unusual images that are fine → (mode, size) as stored."""
    folder.mkdir(parents=True, exist_ok=True)
    palette = picture().quantize(16)
    made = {
        "one.png": (picture(size=(1, 1)), "PNG", {}),
        "thin.png": (picture(size=(1, 20_000)), "PNG", {}),
        "cmyk.jpg": (picture(mode="CMYK"), "JPEG", {}),
        "grey.jpg": (picture(mode="L"), "JPEG", {}),
        "bits.png": (picture(mode="1"), "PNG", {}),
        "alpha.png": (picture(mode="RGBA"), "PNG", {}),
        "grey_alpha.png": (picture(mode="LA"), "PNG", {}),
        "palette.png": (palette, "PNG", {}),
        "palette_alpha.png": (palette, "PNG", {"transparency": bytes(range(16))}),
        "palette_one_clear.png": (palette, "PNG", {"transparency": 3}),
        "progressive.jpg": (picture(), "JPEG", {"progressive": True}),
        "a.webp": (picture(), "WEBP", {"lossless": True}),
        "a.bmp": (picture(), "BMP", {}),
        "wrong_extension.jpg": (picture(), "PNG", {}),
        "animated.png": (picture(), "PNG", {"save_all": True, "append_images": [picture(1)]}),
        "turned.jpg": (picture(), "JPEG", {"exif": b"Exif\0\0MM\0*\0\0\0\x08\0\1\1\x12\0\3\0\0\0\1\0\6\0\0\0\0\0\0"}),
    }
    for name, (image, kind, options) in made.items():
        (folder / name).write_bytes(encoded(image, kind, **options))
    return list(made)
