"""From a text to a data set."""

import sys
import warnings

import pytest

from dspreg import ConfigError, DataError, Notice
from dspreg.data import Digits, DomainNet, Folder, Index, dataset_table, labels_of, open_dataset
from helpers.images import put, small_tree


def test_digits_and_folders_and_tables(tmp_path):
    assert isinstance(open_dataset("digits"), Digits)
    small_tree(tmp_path / "mine")
    folder = open_dataset(f"folder:{tmp_path}/mine", name="other")
    assert isinstance(folder, Folder)
    assert folder.name == "other"
    put(tmp_path / "1.jpg")
    put(tmp_path / "2.jpg")
    (tmp_path / "list.csv").write_text("path,label,domain\n1.jpg,cat,a\n2.jpg,cat,a\n")
    assert isinstance(open_dataset(f"index:{tmp_path}/list.csv"), Index)
    assert open_dataset(f"index:{tmp_path}/list.csv", root=tmp_path, name="n").name == "n"


def test_benchmarks_are_looked_for_below_the_root(tmp_path, monkeypatch):
    with pytest.raises(DataError, match=f"there is no folder {tmp_path}/office_home"):
        open_dataset("OfficeHome", tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="there is no folder data/PACS"):
        open_dataset("PACS")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("pacs", r"unknown data set 'pacs'\. Did you mean 'PACS'\? Known: digits, VLCS"),
        ("office_home", "Did you mean 'OfficeHome'"),
        ("TerraIncognito", "Did you mean 'TerraIncognita'"),
        ("Digits", "Did you mean 'digits'"),
        ("MNIST", r"unknown data set 'MNIST'\. Known: .* folder:PATH or index:FILE\.csv"),
        ("", "unknown data set ''"),
        ("folder:", r"names no folder\. Write folder:PATH"),
        ("index:", "names no file"),
        ("no_such_module.Mine", "no module 'no_such_module'; is its folder on PYTHONPATH"),
        ("pathlib.Path", "is not a class of data sets"),
        ("pathlib.Nothing", "can't be imported"),
    ],
)
def test_what_is_not_known(text, said):
    with pytest.raises(ConfigError, match=said):
        open_dataset(text)


def test_a_folder_without_its_prefix(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="Did you mean 'folder:mine'"):
        open_dataset("mine")


def test_only_your_own_take_a_name():
    with pytest.raises(ConfigError, match="'digits' has its own"):
        open_dataset("digits", name="mine")


def test_your_own_class_is_imported(tmp_path, monkeypatch):
    (tmp_path / "my_data_for_a_test.py").write_text(
        "from dspreg import DomainDataset\n"
        "class Mine(DomainDataset):\n"
        "    name, domains, classes = 'mine', ('a',), ('x',)\n"
        "    def domain(self, name): return []\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    dataset = open_dataset("my_data_for_a_test.Mine", root=tmp_path)
    assert (dataset.name, dataset.root) == ("mine", tmp_path)
    del sys.modules["my_data_for_a_test"]


def test_the_list_has_every_data_set():
    lines = dataset_table().splitlines()
    assert lines[0].split() == ["name", "domains", "classes", "images", "--dataset"]
    assert lines[1].split()[:4] == ["digits", "4", "10", "4,797"]
    assert lines[6].split()[:4] == ["DomainNet", "6", str(len(DomainNet.classes)), "586,575"]
    column = lines[0].index("--dataset")
    assert all(line[column - 1] == " " and line[column] != " " for line in lines[1:])
    assert max(map(len, lines)) <= 94


def test_labels_without_decoding(tmp_path):
    from torchvision.datasets import ImageFolder

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        images = Folder(small_tree(tmp_path)).domain("art")
    theirs = ImageFolder(tmp_path / "art")
    for path in tmp_path.rglob("*.jpg"):
        path.write_bytes(b"")
    assert labels_of(images) == labels_of(theirs) == [0, 0, 1, 1, 2, 2]
    assert labels_of([(None, 1), (None, 0)]) == [1, 0]
    assert labels_of(Digits().domain("sign"))[:11] == [*range(10), 0]


def test_digits_say_that_they_are_small():
    assert (Digits.small, Digits.image_size, Digits.evaluate_every) == (True, 28, 50)
