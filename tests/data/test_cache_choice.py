"""`--cache auto`: kept on disk where everything fits, by a rule that is worked out here by hand."""

import shutil
from collections import namedtuple

import pytest

from dspreg.data import Digits, Folder, cache_choice
from dspreg.data.cache_choice import choose_cache, open_chosen_cache
from dspreg.errors import DataError, Notice, ResourceError
from helpers.images import picture, small_tree

Usage = namedtuple("Usage", "total used free")
SIZE = 16
EACH = 3 * 12 * 9 + 3 * SIZE * SIZE  # bytes of `picture()`, decoded and resized


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("DSPREG_CACHE", str(tmp_path / "cache"))
    found = Folder(small_tree(tmp_path / "set"))
    assert picture(0).size == (12, 9)
    return found


def free(monkeypatch, space):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, space))


def total(folder):
    return EACH * sum(len(folder.domain(name)) for name in folder.domains)


def test_on_disk_if_all_take_half_of_what_is_free_at_most(folder, monkeypatch):
    free(monkeypatch, 2 * total(folder))
    chosen = choose_cache("auto", folder, SIZE)
    assert (chosen.kind, chosen.needed) == ("disk", total(folder))
    free(monkeypatch, 2 * total(folder) - 2)
    assert choose_cache("auto", folder, SIZE).kind == "none"


def test_what_the_cache_holds_counts_as_free(folder, monkeypatch, tmp_path):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "used").write_text(str(total(folder)))
    free(monkeypatch, total(folder))
    assert choose_cache("auto", folder, SIZE).kind == "disk"


def test_never_more_than_the_limit(folder, monkeypatch):
    monkeypatch.setattr(cache_choice, "DISK_LIMIT", total(folder) - 1)
    chosen = choose_cache("auto", folder, SIZE)
    assert chosen.kind == "none"
    assert "about 0.0 of at most 0.0 GB" in chosen.reason


def test_not_where_it_can_t_be_written(folder, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("DSPREG_CACHE", str(tmp_path / "file" / "cache"))
    assert choose_cache("auto", folder, SIZE).kind == "none"


def test_not_for_small_images_or_those_in_memory(monkeypatch, tmp_path):
    monkeypatch.setenv("DSPREG_CACHE", str(tmp_path / "cache"))
    assert choose_cache("auto", Digits(), 28).kind == "none"


def test_a_set_of_small_images_is_not_opened_for_that(folder, monkeypatch):
    """Some make their images when a domain is opened: RotatedMNIST turns 70,000."""
    monkeypatch.setattr(type(folder), "domain", lambda *_: pytest.fail("opened"))
    monkeypatch.setattr(folder, "small", True, raising=False)
    assert choose_cache("auto", folder, 28).kind == "none"


def test_any_other_kind_is_what_it_says(folder, monkeypatch):
    free(monkeypatch, 0)
    assert [choose_cache(kind, folder, SIZE).kind for kind in ("none", "disk", "ram")] == ["none", "disk", "ram"]


def test_what_is_no_image_is_left_to_the_reading(folder, monkeypatch):
    folder.domain("art").files[0].write_bytes(b"no image")
    free(monkeypatch, 10 * total(folder))
    assert choose_cache("auto", folder, SIZE).needed == total(folder)


def test_a_cache_that_can_not_be_opened_after_all_is_none(folder, monkeypatch):
    """`auto` is nobody's wish: a disk that refuses must not end a training. One that was asked for does."""

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    free(monkeypatch, 10**12)
    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    with pytest.warns(Notice, match="--cache auto is none here: .*can't be written"):
        chosen, cache = open_chosen_cache("auto", folder, SIZE)
    assert (chosen.kind, cache) == ("none", None)
    with pytest.raises(DataError, match="can't be written"):
        open_chosen_cache("disk", folder, SIZE)


def test_descriptors_that_are_used_up_are_no_fault_of_the_data(folder, monkeypatch):
    def refuse(*_, **__):
        raise OSError(24, "Too many open files")

    free(monkeypatch, 10**12)
    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    with pytest.raises(ResourceError, match="can't be opened"):
        open_chosen_cache("auto", folder, SIZE)
