"""Verify names every bad image and goes on; its counts are those of a naive loop."""

import shutil
import warnings

import pytest
from PIL import Image

from dspreg import Notice
from dspreg.data import Digits, DomainDataset, Folder, verify
from dspreg.data.verify import find_leaks
from helpers.images import bad_files, good_files, picture, put, small_tree


def folder(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        return Folder(path)


def test_every_bad_image_is_named_with_a_reason_and_no_other(tmp_path):
    small_tree(tmp_path)
    expected = bad_files(tmp_path / "art" / "cat")
    for name in ("really_a_gif.jpg", "really_a_tiff.png", "deep.png"):  # which are read, but for DomainBed's reading
        del expected[name]
    good_files(tmp_path / "photo" / "cat")
    (tmp_path / "art" / "cat" / "folder.jpg").mkdir()
    report = verify(folder(tmp_path))
    told = {bad.image.removeprefix("art/cat/"): bad.reason for bad in report.bad}
    assert set(told) == set(expected)
    assert all(word in told[name] for name, word in expected.items())
    assert not report.ok
    text = report.text()
    for name in expected:
        assert f"\n  art/cat/{name}: " in text
    assert "folders named like images: art/cat/folder.jpg" in text


def test_counts_are_those_of_a_loop(tmp_path):
    small_tree(tmp_path, each=3)
    put(tmp_path / "art" / "cat" / "more.jpg", seed=70)
    shutil.rmtree(tmp_path / "photo" / "emu")
    (tmp_path / "photo" / "dog" / "0.jpg").unlink()
    (tmp_path / "photo" / "dog" / "1.jpg").unlink()
    report = verify(folder(tmp_path))
    for domain in ("art", "photo"):
        for label, name in enumerate(("cat", "dog", "emu")):
            assert report.counts[domain][label] == len(list((tmp_path / domain / name).glob("*")))
    assert report.images == 14
    assert report.missing == (("photo", "emu"),)
    assert report.single == (("photo", "dog"),)
    assert not report.ok
    assert "photo has no images of: emu" in report.text()
    assert "photo has a single image of: dog" in report.text()


def test_the_text_literally(tmp_path):
    small_tree(tmp_path / "mine")
    shutil.copy(tmp_path / "mine/art/cat/0.jpg", tmp_path / "mine/photo/dog/x.jpg")
    shutil.copy(tmp_path / "mine/art/cat/1.jpg", tmp_path / "mine/art/cat/2.jpg")
    report = verify(folder(tmp_path / "mine"))
    assert report.ok
    assert report.across == (("art/cat/0.jpg", "photo/dog/x.jpg"),)
    assert report.within == (("art/cat/1.jpg", "art/cat/2.jpg"),)
    *lines, last = report.text().splitlines()
    assert lines == [
        "mine: 14 images, 2 domains, 3 classes",
        "",
        "domain  cat  dog  emu  all",
        "art       3    2    2    7",
        "photo     2    3    2    7",
        "all       5    5    4   14",
        "",
        "warning: 1 image in several domains",
        "  art/cat/0.jpg = photo/dog/x.jpg",
        "",
        "warning: 1 image several times in a domain",
        "  art/cat/1.jpg = art/cat/2.jpg",
        "",
    ]
    assert last.startswith("ok, 14 images looked at in ")


def test_many_classes_are_summed_and_many_groups_cut(tmp_path):
    small_tree(tmp_path, classes=[f"c{i:02}" for i in range(13)])
    for path in list((tmp_path / "art").glob("*/*.jpg")):
        put(path.with_name(f"twin{path.name}"), path.read_bytes())
    text = verify(folder(tmp_path)).text()
    assert "\ndomain  all\nart      52\nphoto    26\nall      78\n" in text
    assert "warning: 26 images several times in a domain" in text
    assert "\n  and 6 more\n" in text


def test_numbers_that_differ_from_the_published_ones_are_not_ok(tmp_path):
    from dspreg.data import PACS

    small_tree(tmp_path / "PACS", PACS.domains, PACS.classes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        report = verify(PACS(tmp_path))
    assert not report.ok
    text = report.text()
    assert (
        "4 numbers that differ\n  the domain 'art_painting' has 14 images where 2,048 are published: 2,034 mi" in text
    )
    assert text.count("2,034 missing") == 1  # and not once more as a notice
    assert text.splitlines()[-1].startswith("NOT OK, 56 images")


def test_progress_is_told_to_the_end(tmp_path):
    seen = []
    verify(Digits(), lambda done, total: seen.append((done, total)))
    assert seen[-1] == (4797, 4797)
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})


class Mine(DomainDataset):
    name, domains, classes = "mine", ("a", "b"), ("x", "y")

    def domain(self, name):
        return Odd() if name == "a" else [(picture(1), 0), (picture(2), 1)]


class Odd:
    def __len__(self):
        return 4

    def __getitem__(self, i):
        if i == 1:
            raise OSError("the disk is gone")
        return (picture(i) if i else Image.new("L", (3, 3))), i


def test_any_other_data_set():
    report = verify(Mine())
    assert [(b.image, b.reason) for b in report.bad] == [
        ("a[1]", "OSError: the disk is gone"),
        ("a[2]", "its label is 2, outside 0 … 1"),
        ("a[3]", "its label is 3, outside 0 … 1"),
    ]
    assert report.across == (("a[2]", "b[1]"),)
    assert report.missing == (("a", "y"),)


def test_digits_are_fine():
    report = verify(Digits())
    assert report.ok
    assert (report.images, report.across, report.within) == (4797, (), ())


@pytest.mark.parametrize("kind", ["file", "cache"])
def test_a_cache_hides_no_bad_file(tmp_path, kind):
    from dspreg.data import Cache

    dataset = folder(small_tree(tmp_path / "set"))
    if kind == "cache":
        dataset.cache = Cache(tmp_path / "cache", 10**9)
        list(dataset.domain("art"))
    (tmp_path / "set" / "art" / "cat" / "0.jpg").write_bytes(b"")
    assert [b.image for b in verify(dataset).bad] == ["art/cat/0.jpg"]


HOSTILE = "c\x1b[2Ja\rt\n\u202eNOT OK\x07"


def test_names_move_no_cursor(tmp_path):
    """Of domains, classes and files: what a terminal would obey is printed as an escape, on the line it belongs to."""
    small_tree(tmp_path / "mine", domains=("art", f"{HOSTILE}d"), classes=("cat", f"{HOSTILE}k"))
    put(tmp_path / "mine/art/cat" / f"{HOSTILE}.jpg", content=b"no image")
    shutil.copy(tmp_path / "mine/art/cat/0.jpg", tmp_path / "mine/art/cat" / f"{HOSTILE}1.jpg")
    shutil.copy(tmp_path / "mine/art/cat/0.jpg", tmp_path / "mine" / f"{HOSTILE}d/cat/{HOSTILE}2.jpg")
    (tmp_path / "mine/only" / f"{HOSTILE}k").mkdir(parents=True)
    put(tmp_path / "mine/only" / f"{HOSTILE}k/0.jpg", seed=99)
    text = verify(folder(tmp_path / "mine")).text()
    assert not set(text) & {"\x1b", "\r", "\x07", "\u202e"}
    assert r"c\x1b[2Ja\rt\n\u202eNOT OK\x07" in text
    assert not any(line.startswith(("NOT OK\\", "\\u202e")) for line in text.splitlines())
    heading, *rows = [line for line in text.splitlines() if line.startswith(("domain", "art", "c\\x1b", "all"))][:4]
    assert {len(row) for row in rows} == {len(heading)}


# What `train` says of equal files.


def leaks(root, targets):
    data = Folder(root)
    return list(find_leaks({name: data.domain(name) for name in data.domains}, targets))


@pytest.mark.filterwarnings("ignore::dspreg.Notice")
def test_images_of_the_target_that_are_in_a_source_are_counted(tmp_path):
    root = small_tree(tmp_path, ("art", "photo", "sketch"))
    assert leaks(root, ["photo"]) == []
    copy = (root / "art/cat/0.jpg").read_bytes()
    put(root / "photo/cat/9.jpg", copy)
    put(root / "photo/cat/8.jpg", copy)
    (said,) = leaks(root, ["photo"])
    assert said.startswith("2 images of the target are in a source")
    assert "photo/cat/8.jpg = art/cat/0.jpg" in said
    assert leaks(root, ["sketch"]) == []  # both are trained on
    assert leaks(root, ["art", "photo"]) == []  # neither is
    assert leaks(root, []) == []


@pytest.mark.filterwarnings("ignore::dspreg.Notice")
def test_one_image_under_two_labels(tmp_path):
    root = small_tree(tmp_path)
    put(root / "art/dog/9.jpg", (root / "art/cat/1.jpg").read_bytes())
    (said,) = leaks(root, ["photo"])
    assert said == "1 image is there under two labels, byte for byte, e.g. art/cat/1.jpg = art/dog/9.jpg"
