"""Folders of images: torchvision's order, one class list, and clear words for what is odd."""

import os
import shutil
import warnings

import pytest
from torchvision.datasets import ImageFolder

from dspreg import ConfigError, DataError, Notice
from dspreg.data import Folder, labels_of
from helpers.images import put, small_tree, tree

ODD_NAMES = [
    "b.jpg", "B.JPG", "a.jpeg", "a10.png", "a9.png", "z/1.jpg", "z-1/1.jpg", "z.1/1.jpg", "z/deep/er/0.webp", "Z/2.bmp",
    "ä.jpg", "with space.jpg", "_x.png", "10.jpg", "9.jpg",
]  # fmt: skip


def quietly(path, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        return Folder(path, **options)


def test_order_and_labels_are_torchvisions(tmp_path):
    classes = ("Cat", "cat", "dog", "dog-2", "dog 3")
    tree(tmp_path, [f"{d}/{c}/{n}" for d in ("x", "y") for c in classes for n in ODD_NAMES])
    for other in ("notes.txt", "Thumbs.db", "README"):
        put(tmp_path / "x" / "cat" / other, b"text")
    dataset = quietly(tmp_path)
    for name in ("x", "y"):
        theirs = ImageFolder(tmp_path / name)
        ours = dataset.domain(name)
        assert [os.fspath(f) for f in ours.files] == [path for path, _ in theirs.samples]
        assert ours.labels == theirs.targets == labels_of(ours)
        assert list(dataset.classes) == theirs.classes
        assert len(ours) == len(classes) * len(ODD_NAMES)
        assert ours.names == [os.path.relpath(path, tmp_path) for path, _ in theirs.samples]


def test_domains_and_name(tmp_path, monkeypatch):
    small_tree(tmp_path / "mine", domains=("b", "a", "C"))
    put(tmp_path / "mine" / ".hidden" / "x" / "1.jpg")
    put(tmp_path / "mine" / "a" / ".ipynb_checkpoints" / "1.jpg")
    dataset = Folder(tmp_path / "mine")
    assert dataset.domains == ("C", "a", "b")
    assert dataset.classes == ("cat", "dog", "emu")
    assert dataset.name == "mine"
    assert Folder(tmp_path / "mine", name="other").name == "other"
    monkeypatch.chdir(tmp_path / "mine")
    here = Folder(".")
    assert here.name == "mine"
    assert here.domain("a").names == dataset.domain("a").names
    assert here.domain("a").names[0] == "a/cat/0.jpg"
    with pytest.raises(ValueError, match="Unknown domain 'c'"):
        here.domain("c")


def test_a_class_missing_in_one_domain_moves_no_label(tmp_path):
    small_tree(tmp_path, domains=("a", "b", "z"))
    before = {d: dict(zip(i.names, i.labels, strict=True)) for d in "abz" for i in [Folder(tmp_path).domain(d)]}
    shutil.rmtree(tmp_path / "z" / "cat")  # the last domain, where DomainBed counts its classes
    with pytest.warns(Notice, match="'z' has no images of 1 class: cat"):
        dataset = Folder(tmp_path)
    assert dataset.num_classes == 3
    for d in "abz":
        images = dataset.domain(d)
        assert all(before[d][name] == label for name, label in zip(images.names, images.labels, strict=True))
    assert len(dataset.domain("z")) == 4


def test_what_is_odd_is_told_once_each(tmp_path):
    small_tree(tmp_path)
    put(tmp_path / "art" / "fox" / "1.jpg")
    put(tmp_path / "art" / "cat" / "notes.txt", b"x")
    put(tmp_path / "art" / "dog" / "Thumbs.db", b"x")
    put(tmp_path / "art" / "cat" / "scan.jxl", b"x")
    put(tmp_path / "art" / "cat" / "._0.jpg", b"x")
    put(tmp_path / "art" / "cat" / ".ipynb_checkpoints" / "0-checkpoint.jpg", b"x")
    (tmp_path / "art" / "cat" / "folder.jpg").mkdir()
    (tmp_path / "photo" / "gnu").mkdir()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        dataset = Folder(tmp_path)
    assert [str(w.message) for w in told] == [f"{dataset.name}: {notice}" for notice in dataset.notices]
    assert all(w.category is Notice for w in told)
    assert dataset.notices == (
        "the domain 'art' has a single image of 1 class: fox",
        "the domain 'photo' has no images of 1 class: fox",
        "class folders without an image in any domain are left out: gnu",
        "ignored 1 file of a kind that is not read (1 .jxl; convert to PNG or JPEG), e.g. art/cat/scan.jxl",
        "ignored 1 file not images by their extension, e.g. art/cat/notes.txt",
        "ignored 1 file hidden (a name that starts with a dot), e.g. art/cat/.ipynb_checkpoints/0-checkpoint.jpg",
        "ignored 2 files that systems and programs leave behind, e.g. art/cat/._0.jpg",
        "folders named like images: art/cat/folder.jpg",
    )


@pytest.mark.parametrize(
    ("names", "below", "said"),
    [
        ([], "nowhere", "does not exist"),
        (["f"], "f", "is not a folder"),
        (["1.jpg", "2.jpg"], "", "no sub-folders to be domains, and 2 images in it directly, e.g. 1.jpg"),
        (["readme.txt"], "", "no sub-folders to be domains, and no image in it. Not read there: 1 file .1 .txt"),
        (["a.psd", "b.psd", "c.xyz"], "", "no image in it. Not read there: 3 files .2 .psd, 1 .xyz"),
        (["cat/1.jpg", "dog/1.jpg"], "", "looks like class/image, one level too few"),
        (["a/cat/1.jpg", "b/1.jpg"], "", "images without a class: 1 image directly in the domain folder"),
        (["a/cat/1.jpg", "a/1.jpg", "b/cat/1.jpg"], "", "images without a class"),
        (["PACS/a/cat/1.jpg", "PACS/b/cat/1.jpg"], "", "one level too many: its only sub-folder is 'PACS'"),
        (["a/train/cat/1.jpg", "b/test/cat/1.jpg"], "", "one level too many: test, train would be the classes"),
        (["a/cat/1.jpg", "b/cat/1.txt"], "", "the domain 'b' of .* has no images"),
        (["a/cat/1.jpg", "b/x.txt"], "", "the domain 'b' of .* has no images"),
        (["a/cat/1.jpg", "b/cat/1.jxl", "b/cat/2.jxl"], "", "'b' of .* no images.* Not read there: 2 files .2 .jxl"),
    ],
)  # fmt: skip
def test_other_layouts_are_refused_in_words(tmp_path, names, below, said):
    tree(tmp_path, names)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        with pytest.raises(DataError, match=said) as refused:
            Folder(tmp_path / below)
    assert "Wanted: ROOT/domain/class/image.jpg" in str(refused.value)


def test_a_folder_between_is_told_but_may_be_meant(tmp_path):
    tree(tmp_path, ["a/cat/day1/1.jpg", "a/cat/day1/2.jpg", "b/cat/day1/1.jpg", "b/cat/day2/1.jpg"])
    with pytest.warns(Notice, match="only deeper. Taken as classes: cat"):
        assert len(Folder(tmp_path).domain("b")) == 2


def test_one_domain_is_allowed_here(tmp_path):
    assert Folder(small_tree(tmp_path, domains=("only",))).domains == ("only",)


def test_links_are_followed_but_not_for_ever(tmp_path):
    small_tree(tmp_path / "real")
    (tmp_path / "linked").mkdir()
    for domain in ("art", "photo"):
        (tmp_path / "linked" / domain).symlink_to(tmp_path / "real" / domain)
    assert len(Folder(tmp_path / "linked").domain("art")) == 6
    (tmp_path / "real" / "art" / "cat" / "again").symlink_to("..")
    with pytest.raises(DataError, match=r"cat/again.* is a link to a folder that was reached before"):
        Folder(tmp_path / "real")


def test_a_broken_link_is_listed_and_refused_when_read(tmp_path):
    small_tree(tmp_path)
    (tmp_path / "art" / "cat" / "x.jpg").symlink_to("gone.jpg")
    images = Folder(tmp_path).domain("art")
    with pytest.raises(DataError, match=r"a symbolic link to 'gone.jpg', which is missing"):
        images.hashes  # noqa: B018


def test_a_name_that_is_no_text_is_refused(tmp_path):
    small_tree(tmp_path)
    with open(os.fsencode(tmp_path) + b"/art/cat/\xff.jpg", "wb"):
        pass
    with pytest.raises(DataError, match=r"not valid UTF-8. Rename"):
        Folder(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read_is_not_skipped(tmp_path):
    small_tree(tmp_path)
    (tmp_path / "art" / "cat").chmod(0)
    with pytest.raises(DataError, match="can't be read"):
        Folder(tmp_path)
    (tmp_path / "art" / "cat").chmod(0o700)


def test_a_link_back_to_a_parent_is_refused(tmp_path):
    root = small_tree(tmp_path / "mine")
    (root / "art" / "cat" / "again").symlink_to(root / "art")
    with pytest.raises(DataError, match="a link to a folder that was reached before"):
        Folder(root)


def test_a_link_to_itself_is_named_when_it_is_read(tmp_path):
    root = small_tree(tmp_path / "mine")
    (root / "art" / "cat" / "loop.jpg").symlink_to("loop.jpg")
    art = Folder(root).domain("art")
    with pytest.raises(DataError, match=r"loop\.jpg .* leads back to itself"):
        art[art.names.index("art/cat/loop.jpg")]


def test_a_domain_whose_images_are_all_hidden_is_empty(tmp_path):
    root = small_tree(tmp_path / "mine")
    put(root / "sketch" / "cat" / ".0.jpg")
    with pytest.raises(DataError, match="the domain 'sketch' of mine has no images"):
        Folder(root)


# Groups by name.


@pytest.mark.parametrize(
    ("regex", "groups"),
    [
        (r"p\d+", ["p1", "p1", "p2", "p2"]),
        (r"/(p\d+)_", ["p1", "p1", "p2", "p2"]),
        (r"(?:_)(\d)", ["1", "2", "1", "2"]),
        (r"p1(_)?", ["_", "_", "", ""]),
    ],
)
def test_a_group_is_what_the_expression_finds_in_the_path(tmp_path, regex, groups):
    tree(tmp_path, [f"a/cat/p{patient}_{i}.jpg" for patient in (1, 2) for i in (1, 2)])
    assert list(quietly(tmp_path, group=regex).domain("a").annotations.groups) == groups


def test_paths_without_a_group_are_told_and_none_at_all_is_an_error(tmp_path):
    tree(tmp_path, ["a/cat/p1_1.jpg", "a/cat/x.jpg", "a/cat/y.jpg"])
    with pytest.warns(Notice, match=r"--group finds no group in the path of 2 images of 3, e.g. a/cat/x.jpg"):
        Folder(tmp_path, group=r"p\d")
    with pytest.raises(ConfigError, match=r"--group 'q.' finds a group in no path, such as 'a/cat/p1_1.jpg'"):
        Folder(tmp_path, group="q.")


# What is at fault, all at once.


def test_all_faults_are_told_at_once_and_a_lenient_reading_leaves_them_out(tmp_path):
    tree(tmp_path, ["a/cat/1.jpg", "a/loose.jpg", "b/cat/1.jpg", "b/cat/2.jpg", "b/also.jpg", "c/cat/notes.txt"])
    (tmp_path / "b" / "dog").mkdir()
    (tmp_path / "b" / "dog" / "again").symlink_to("..")
    with open(os.fsencode(tmp_path) + b"/a/cat/\xff.jpg", "wb"):
        pass
    with pytest.raises(DataError) as refused:
        quietly(tmp_path)
    wanted = [
        "1 image directly in the domain folder", "a, e.g. loose.jpg", "b, e.g. also.jpg", "not valid UTF-8", "link",
        "the domain 'c' of",
    ]  # fmt: skip
    for said in wanted:
        assert said in str(refused.value)
    found = quietly(tmp_path, lenient=True)
    assert sorted(each.kind for each in found.faults) == ["empty domain", "folder", "name", "no class", "no class"]
    assert {d: found.domain(d).names for d in found.domains} == {
        "a": ["a/cat/1.jpg"],
        "b": ["b/cat/1.jpg", "b/cat/2.jpg"],
    }


def test_what_systems_leave_behind_is_no_domain_class_or_image(tmp_path):
    small_tree(tmp_path)
    put(tmp_path / "__MACOSX" / "art" / "cat" / "._0.jpg", b"x")
    put(tmp_path / "art" / "@eaDir" / "0.jpg" / "thumb.jpg")
    put(tmp_path / "art" / "cat" / "@eaDir" / "0.jpg")
    put(tmp_path / "photo" / "desktop.ini", b"x")
    put(tmp_path / "stray.jpg")
    found = quietly(tmp_path)
    assert (found.domains, found.classes, len(found.domain("art"))) == (("art", "photo"), ("cat", "dog", "emu"), 6)
    by_kind = {each.kind: each for each in found.findings}
    assert set(by_kind["left behind"].items) == {
        "__MACOSX", "art/@eaDir", "art/cat/@eaDir/0.jpg", "photo/desktop.ini",
    }  # fmt: skip
    assert by_kind["no domain"].items == ("stray.jpg",)
    assert by_kind["no domain"].severity == "warning"
