"""`dspreg data show`: the sheet holds the pixels that the network sees, and says how they came about."""

import base64
import html
import io
import re

import numpy as np
import pytest
from PIL import Image

from dspreg.cli import main
from dspreg.data.contact_sheet import GAP, contact_sheet
from dspreg.data.digits import Digits
from helpers.images import put
from helpers.kinds import exif, file_of, noise, tiff


@pytest.fixture
def photos(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for domain in ("here", "there"):
        for n in range(3):
            put(tmp_path / "photos" / domain / "cat" / f"{n}.png", file_of(noise(6, 6, 3, seed=n), "PNG", exif=exif(3)))
        put(tmp_path / "photos" / domain / "<b>dog" / "0.png", file_of(noise(6, 6, 3, seed=9), "PNG"))
    return tmp_path / "photos"


def images_in(page):
    found = re.findall(r'alt="([^"]*)" src="data:image/png;base64,([^"]*)"', page)
    return {alt: np.asarray(Image.open(io.BytesIO(base64.b64decode(data)))) for alt, data in found}


def test_a_page_shows_the_pixels_and_is_whole_by_itself(photos, capsys):
    given = ["data", "show", "photos", "--image-size", "6", "--images", "2", "--domain", "there", "--resize", "crop"]
    assert main(given) == 0
    said = capsys.readouterr().out
    assert "turned as EXIF says, on white where transparent" in said
    assert "the middle cut to 6 × 6" in said
    assert "see photos.html" in said
    page = (photos.parent / "photos.html").read_text()
    assert "default-src 'none'" in html.unescape(page)
    assert "&lt;b&gt;dog" in page
    assert "<b>" not in page
    assert "<th>there" in page
    assert "<th>here" not in page
    shown = images_in(page)
    assert set(shown) == {
        f"{name}, there, {how}" for name in ("cat", "&lt;b&gt;dog") for how in ("as they are", "changed")
    }
    cats = shown["cat, there, as they are"]
    assert np.array_equal(cats[:, :6], noise(6, 6, 3, seed=0)[::-1, ::-1])
    assert np.array_equal(cats[:, 6 + GAP :], noise(6, 6, 3, seed=2)[::-1, ::-1])
    assert not np.array_equal(shown["cat, there, changed"], cats)


def test_a_picture_and_without_augmentation(photos, capsys):
    options = ["--augment", "none", "--exif", "no", "--image-size", "64"]
    assert main(["data", "show", "folder:photos", "--out", "sheet.PNG", *options]) == 0
    assert "Training changes nothing at random." in capsys.readouterr().out
    picture = np.asarray(Image.open(photos.parent / "sheet.PNG").convert("RGB")).astype(int)
    tile = (
        np.asarray(Image.fromarray(noise(6, 6, 3)).resize((64, 64), Image.Resampling.BILINEAR))
        .repeat(2, 0)
        .repeat(2, 1)
    )
    where = [
        (y, x) for y in range(picture.shape[0] - 127) for x in range(picture.shape[1] - 127)
        if (picture[y, x] == tile[0, 0]).all() and np.array_equal(picture[y : y + 128, x : x + 128], tile)
    ]  # fmt: skip
    assert len(where) == 2  # of the first cat, in each domain


def test_many_channels_and_bad_files_are_said(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for domain in "ab":
        put(tmp_path / "spectra" / domain / "x" / "0.tif", tiff(noise(5, 8, 8)))
        put(tmp_path / "spectra" / domain / "x" / "1.tif", tiff(noise(4, 8, 8)))
    assert main(["data", "show", "spectra", "--channels", "5", "--image-size", "8", "--out", "s.html"]) == 3
    said = capsys.readouterr()
    assert "it has 4 channels, which can't be read as 5 channels" in said.err
    assert "Read as: 5 channels" in said.out
    page = (tmp_path / "s.html").read_text()
    assert "2 of the chosen images can't be read" in html.unescape(page)
    assert np.array_equal(images_in(page)["x, a, as they are"], noise(5, 8, 8)[:3].transpose(1, 2, 0))


@pytest.mark.parametrize(("more", "said"), [
    (["--out", "sheet.pdf"], "wanted a name that ends in .png or .html"),
    (["--class", "bird"], "no class 'bird'"), (["--domain", "her"], "Did you mean 'here'"),
    (["--augment", "heavy"], "wanted domainbed, none, light"), (["--window", "9:1"], "wanted auto, percentile"),
])  # fmt: skip
def test_what_is_wrong_is_said(photos, capsys, more, said):
    assert main(["data", "show", "photos", *more]) == 2
    assert said in capsys.readouterr().err
    assert not (photos.parent / "photos.html").exists()


def test_a_sheet_in_python():
    from dspreg.config.train_config import TrainConfig, resolve_config

    data = Digits()
    sheet = contact_sheet(data, resolve_config(TrainConfig(dataset="digits"), data), images=2, classes=["3", "7"])
    assert sheet.classes == ("3", "7")
    assert {len(cell.plain) for cell in sheet.cells.values()} == {2}
    assert not any(cell.changed for cell in sheet.cells.values())
    image, label = data.domain("print")[0]
    assert label in range(10)
    assert sheet.cells["3", "print"].plain[0].shape == (3, *image.size)
