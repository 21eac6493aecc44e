"""Verify names every bad image and goes on; its counts are those of a naive loop."""

import json
import re
import shutil
import warnings

import numpy as np
import pytest
from PIL import Image

from dspreg import Notice
from dspreg.data import Digits, DomainDataset, Folder, verify
from dspreg.data.verify import find_leaks
from helpers.images import bad_files, encoded, good_files, picture, put, small_tree


def folder(path, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        return Folder(path, **options)


def lenient(path, **options):
    return folder(path, lenient=True, **options)


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
    assert report.ok  # a training says so and goes on
    assert [each.severity for each in report.findings] == ["warning", "warning"]
    assert "photo has no images of: emu" in report.text()
    assert "photo has a single image of: dog" in report.text()


def test_the_text_literally(tmp_path):
    small_tree(tmp_path / "mine")
    shutil.copy(tmp_path / "mine/art/cat/0.jpg", tmp_path / "mine/photo/dog/x.jpg")
    shutil.copy(tmp_path / "mine/art/cat/1.jpg", tmp_path / "mine/art/cat/2.jpg")
    report = verify(folder(tmp_path / "mine"))
    assert not report.ok
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
        "error: 1 image under several labels",
        "  art/cat/0.jpg = photo/dog/x.jpg",
        "",
        "warning: 1 image several times in a domain",
        "  art/cat/1.jpg = art/cat/2.jpg",
        "",
    ]
    assert re.fullmatch(r"NOT OK, 14 images looked at in [\d.]+ s. What decides: 1 image under several labels", last)


def test_the_last_line_says_what_decides(tmp_path):
    small_tree(tmp_path / "mine")
    assert re.fullmatch(r"ok, 12 images looked at in [\d.]+ s", verify(folder(tmp_path / "mine")).verdict())
    shutil.copy(tmp_path / "mine/art/cat/0.jpg", tmp_path / "mine/photo/cat/x.jpg")
    report = verify(folder(tmp_path / "mine"))
    assert re.fullmatch(r"ok, 13 .* s; 1 warning, which a training gives, too", report.verdict())
    put(tmp_path / "mine/art/cat/bad.jpg", b"")
    put(tmp_path / "mine/art/stray.jpg")
    report = verify(lenient(tmp_path / "mine"))
    assert report.verdict().endswith("What decides: images without a class; 1 bad image")


def test_many_classes_are_summed_and_many_groups_cut(tmp_path):
    small_tree(tmp_path, classes=[f"c{i:02}" for i in range(13)])
    for path in list((tmp_path / "art").glob("*/*.jpg")):
        put(path.with_name(f"twin{path.name}"), path.read_bytes())
    text = verify(folder(tmp_path)).text()
    rows = [line.split() for line in text.splitlines() if line.startswith(("class ", "c0", "c1", "all "))]
    assert rows == [["class", "art", "photo", "all"], *([f"c{i:02}", "4", "2", "6"] for i in range(13)),
                    ["all", "52", "26", "78"]]  # fmt: skip
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
        "error: 4 numbers that differ\n  the domain 'art_painting' has 14 images where 2,048 are published: 2,034 mi"
        in text
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


# Equal and nearly equal images, by what they do to a training.


def big(seed):
    return picture(seed, (64, 48))


def kinds(report):
    return {each.kind: each for each in report.findings}


def test_an_image_saved_again_under_another_label_is_told(tmp_path):
    root = small_tree(tmp_path / "mine")
    put(root / "art/cat/big.png", encoded(big(100), "PNG"))
    put(root / "art/dog/same.bmp", encoded(big(100), "BMP"))
    put(root / "art/emu/near.jpg", encoded(big(100), "JPEG", quality=60))
    put(root / "photo/cat/here.png", encoded(big(101), "PNG"))
    put(root / "art/cat/smaller.jpg", encoded(big(101).resize((48, 36)), "JPEG"))
    put(root / "photo/dog/one.png", encoded(big(102), "PNG"))
    put(root / "photo/dog/two.jpg", encoded(big(102), "JPEG"))
    report = verify(folder(root))
    found = kinds(report)
    assert found["same image under several labels"].severity == "error"
    assert found["same image under several labels"].items == ("art/cat/big.png = art/dog/same.bmp",)
    labels = found["nearly equal image under several labels"]
    assert (labels.severity, labels.items) == ("warning", ("art/cat/big.png ~ art/dog/same.bmp ~ art/emu/near.jpg",))
    assert found["nearly equal image in several domains"].items == ("art/cat/smaller.jpg ~ photo/cat/here.png",)
    assert found["nearly equal image several times"].items == ("photo/dog/one.png ~ photo/dog/two.jpg",)
    assert len(report.findings) == 4
    assert verify(folder(root), near=False).near == ()


def test_images_of_one_group_may_be_alike(tmp_path):
    """A split does not part them."""
    root = small_tree(tmp_path / "mine")
    for name in ("p1-a.jpg", "p1-b.jpg"):
        put(root / "photo/dog" / name, encoded(big(102), "JPEG", quality=90 if "b" in name else 80))
    put(root / "photo/dog/p1-c.jpg", (root / "photo/dog/p1-a.jpg").read_bytes())
    assert len(verify(folder(root)).findings) == 2
    assert kinds(verify(folder(root, group=r"p1|\w+/\w+/\w+\.jpg"))) == {}


def test_images_on_both_sides_of_a_split_that_is_given(tmp_path):
    from dspreg.data import Index

    for i in range(6):
        put(tmp_path / f"{i}.png", encoded(big(i), "PNG"))
    put(tmp_path / "6.png", encoded(big(0), "PNG"))
    put(tmp_path / "7.jpg", encoded(big(1), "JPEG"))
    lines = [f"{i}.{'jpg' if i == 7 else 'png'},{'cat' if i % 2 == 0 else 'dog'},d,{'test' if i > 5 else 'train'}"
             for i in range(8)]  # fmt: skip
    (tmp_path / "list.csv").write_text("\n".join(["path,label,domain,split", *lines]) + "\n")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        found = kinds(verify(Index(tmp_path / "list.csv")))
    assert found["same image on both sides"].items == ("0.png = 6.png",)
    assert found["nearly equal image on both sides"].items == ("1.png ~ 7.jpg",)


def test_a_table_with_many_faults_ends_in_a_short_line(tmp_path):
    from dspreg.data import Index

    small_tree(tmp_path, ("a",), ("cat",), each=2)
    lines = [f"a/cat/{i}.jpg,cat,a,{'' if i > 1 else 1}" for i in range(300)]
    (tmp_path / "list.csv").write_text("\n".join(["path,label,domain,weight", *lines]) + "\n")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        report = verify(Index(tmp_path / "list.csv", lenient=True))
    assert report.verdict().endswith("What decides: 298 faults in lines of the table")
    assert len(kinds(report)["line"].items) == 298
    assert report.text().count("the cell of 'weight' is empty") == 298


def test_names_that_differ_by_case_or_unicode_form_only(tmp_path):
    root = small_tree(tmp_path / "mine", classes=("cat", "Cat"))
    put(root / "art/cat/caf\u00e9.jpg", seed=90)
    put(root / "art/cat/cafe\u0301.jpg", seed=91)
    for name in ("\u00e9", "e\u0301"):
        put(root / "art" / name / "1.jpg", seed=92 + len(name))
    found = kinds(verify(folder(root)))
    assert found["class names"].items == ("'Cat' = 'cat'", r"'e\u0301' = '\xe9'")
    (item,) = found["file names"].items
    assert set(item.split(" = ")) == {"art/cat/caf\u00e9.jpg", "art/cat/cafe\u0301.jpg"}


# One call, all findings.


def dirty(root):
    """A folder as people send it."""
    small_tree(root, ("Berlin", "Lyon", "Oslo"), ("ill", "well"), each=4)
    bad_files(root / "Lyon" / "ill")
    put(root / "Berlin/ill/scan.png", encoded(big(300), "PNG"))
    put(root / "Berlin/well/scan.bmp", encoded(big(300), "BMP"))
    put(root / "Oslo/well/a.png", encoded(big(301), "PNG"))
    put(root / "Lyon/well/a-small.jpg", encoded(big(301), "JPEG", quality=70))
    put(root / "Berlin/unsure/1.jpg", seed=400)
    put(root / "Lyon/no-class.jpg", seed=401)
    put(root / "Oslo/no-class-either.jpg", seed=402)
    put(root / "nowhere.jpg", seed=403)
    put(root / "Rome/ill/readme.txt", b"to come")
    put(root / "__MACOSX/Berlin/ill/._scan.png", b"x")
    put(root / "Berlin/ill/Thumbs.db", b"x")
    put(root / "Berlin/Well/2.jpg", seed=404)
    put(root / "Lyon/ill/slide.svs.pgm", b"x")
    return root


def test_a_dirty_folder_is_told_whole_in_one_call(tmp_path):
    root = dirty(tmp_path / "sites")
    report = verify(lenient(root))
    errors = sorted(each.kind for each in report.findings if each.severity == "error")
    assert errors == ["bad image", "empty domain", "no class", "no class", "same image under several labels"]
    warned = {each.kind for each in report.findings if each.severity == "warning"}
    assert warned == {
        "class with no images", "class with a single image", "nearly equal image in several domains", "no domain",
        "class names", "kind", "same image several times",
    }  # fmt: skip
    assert {each.kind for each in report.findings if each.severity == "note"} == {"left behind", "no image", "windowed"}
    sound = set(lenient(root).domain("Lyon").names) - {each.image for each in report.bad}
    later = {"deep.png", "really_a_gif.jpg", "really_a_tiff.png"}  # that benchmarks' decoders refuse
    assert {name.rpartition("/")[2] for name in sound if "/ill/" in name} == {f"{n}.jpg" for n in range(4)} | later
    assert sum(report.counts["Lyon"]) == len(report.bad) + len(sound)
    with pytest.raises(ValueError, match=r"3 faults:"):
        folder(root)  # what a training says


def test_the_command_says_all_of_it_and_writes_what_is_asked_for(tmp_path, capsys, monkeypatch):
    from dspreg.cli import main

    monkeypatch.setenv("DSPREG_CACHE", str(tmp_path / "cache"))
    root = dirty(tmp_path / "sites")
    bad, picture_file = tmp_path / "bad.txt", tmp_path / "counts.png"
    command = ["data", "verify", str(root), "--list-bad", str(bad), "--picture", str(picture_file)]
    assert main(command) == 3
    text = capsys.readouterr().out
    assert text.splitlines()[-1].startswith("NOT OK, ")
    listed = bad.read_text().splitlines()
    assert len(listed) == len(set(listed)) > 35
    assert all(name.startswith(str(root / "Lyon" / "ill")) for name in listed)
    with Image.open(picture_file) as shown:
        assert shown.size[0] > 300
    bad.unlink()
    assert main([*command, "--json"]) == 3  # from what was found before
    found = json.loads(capsys.readouterr().out)
    assert not found["ok"]
    assert found["counts"]["Berlin"] == {"Well": 1, "ill": 5, "unsure": 1, "well": 5}
    assert found["decided_by"].count("no class") == 2
    assert bad.read_text().splitlines() == listed


def test_images_are_looked_at_as_a_training_would_read_them(tmp_path, capsys, monkeypatch):
    """Five channels and 16 bits; what is remembered of one reading says nothing about another."""
    from dspreg.cli import main
    from helpers.kinds import noise, tiff

    monkeypatch.setenv("DSPREG_CACHE", str(tmp_path / "cache"))
    for domain in ("a", "b"):
        for n in range(2):
            planes = noise(5, 6, 6, seed=10 * ord(domain) + n, dtype=np.uint16, top=2**16)
            put(tmp_path / "scans" / domain / "cat" / f"{domain}{n}.tif", tiff(planes))
    command = ["data", "verify", str(tmp_path / "scans")]
    assert main(command) == 3
    assert "it has 5 channels, which can't be read as RGB or grey; --channels 5 reads them" in capsys.readouterr().out
    for _ in range(2):
        assert main([*command, "--channels", "5", "--window", "0:65535"]) == 0
        assert "brought to 8 bits by the window 0:65535" in capsys.readouterr().out
    assert main([*command, "--channels", "5", "--window", "none"]) == 3
    assert main(command) == 3
    assert main([*command, "--window", "high"]) == 2
