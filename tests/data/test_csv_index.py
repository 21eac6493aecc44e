"""A table of images: its order, its labels, and the line of every mistake."""

import os
import re

import numpy as np
import pytest

from dspreg import DataError, Notice
from dspreg.data import Folder, Index, fingerprint
from dspreg.data.annotations import Annotations
from helpers.images import picture, put, small_tree

# Tables of a few lines have classes with one image or none, which is told.
pytestmark = pytest.mark.filterwarnings("ignore::dspreg.Notice")


def table(folder, text, encoding="utf-8"):
    (folder / "list.csv").write_bytes(text.encode(encoding))
    return folder / "list.csv"


def rows(*lines):
    return "path,label,domain\n" + "".join(f"{line}\n" for line in lines)


@pytest.fixture
def folder(tmp_path):
    for i in range(12):
        put(tmp_path / f"{i}.png", seed=i)
    return tmp_path


def test_order_is_that_of_the_file_and_names_that_of_the_table(folder):
    lines = ["3.png,dog,b", "1.png,cat,a", "2.png,emu,b", "0.png,cat,b", "./5.png,dog,a"]
    dataset = Index(table(folder, rows(*lines)))
    assert (dataset.name, dataset.domains, dataset.classes) == ("list", ("a", "b"), ("cat", "dog", "emu"))
    b = dataset.domain("b")
    assert (b.names, b.labels) == (["3.png", "2.png", "0.png"], [1, 2, 0])
    assert np.array_equal(np.asarray(b[1][0]), np.asarray(picture(2)))
    assert dataset.domain("a").names == ["1.png", "5.png"]


def test_whole_numbers_sort_as_numbers(folder):
    labels = ["10", "9", "2", "10", "0"]
    dataset = Index(table(folder, rows(*(f"{i}.png,{label},d" for i, label in enumerate(labels)))))
    assert dataset.classes == ("0", "2", "9", "10")
    assert dataset.domain("d").labels == [3, 2, 1, 3, 0]
    mixed = Index(table(folder, rows("0.png,10,d", "1.png,9,d", "2.png,x,d")))
    assert mixed.classes == ("10", "9", "x")


@pytest.mark.parametrize(
    "text",
    [
        "domain,path,extra,label\na,0.png,1,cat\nb,1.png,,dog\n",
        "\ufeffpath,label,domain\n0.png,cat,a\n1.png,dog,b\n",
        "path, label ,domain\r\n0.png,cat,a\r\n\r\n1.png , dog,b",
        'path,label,domain\n"0.png",cat,a\n"1.png","dog",b\n',
    ],
)
def test_ways_to_write_the_same(folder, text):
    dataset = Index(table(folder, text))
    assert (dataset.domains, dataset.classes) == (("a", "b"), ("cat", "dog"))
    assert dataset.domain("b").names == ["1.png"]


def test_paths_may_be_relative_to_a_root_or_absolute_or_lead_upwards(folder, tmp_path):
    (folder / "lists").mkdir()
    other = Index(table(folder / "lists", rows("0.png,cat,a", "1.png,dog,a")), root=folder, name="mine")
    assert other.name == "mine"
    assert other.domain("a")[1][1] == 1
    upwards = Index(table(folder / "lists", rows("../0.png,cat,a")))
    assert upwards.domain("a").names == ["../0.png"]
    absolute = Index(table(folder, rows(f"{folder}/0.png,cat,a", f"{folder}/1.png,dog,a")))
    assert absolute.domain("a").names == ["0.png", "1.png"]
    assert fingerprint(absolute.domain("a")) == fingerprint(other.domain("a"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", r"is empty\. Its first line must be path,label,domain"),
        ("\n\n", "is empty"),
        ("path,label,domain\n", "lists no images"),
        ("path,Label,domain\n0.png,a,b\n", "line 1: the column 'label' is missing. Is 'Label' meant"),
        ("path,labels,domain\n0.png,a,b\n", "the column 'label' is missing. Is 'labels' meant"),
        (
            "path;label;domain\n0.png;a;b\n",
            "'path', 'label', 'domain' are missing. Columns must be separated by commas",
        ),
        ("0.png,a,b\n", "'path', 'label', 'domain' are missing. .* Wanted: path,label,domain; found: 0.png,a,b"),
        (
            "path,Label,Domain\n0.png,a,b\n",
            r"line 1: .*'label' is missing\. Is 'Label' .*'domain' is missing\. Is 'Domain'",
        ),
        ("path,path,label,domain\n", "the column 'path' is there twice"),
        (rows("0.png,a,b", "1.png,,b"), "line 3: the cell of 'label' is empty"),
        (rows("0.png,a,b", "1.png,a"), "line 3: the cell of 'domain' is empty"),
        (rows("0.png,a,b", " ,a,b"), "line 3: the cell of 'path' is empty"),
        (rows("0.png,a,b", "x,1.png,a,b"), "line 3: 4 cells where the header has 3"),
        (rows("0.png,a,b", "x.png,a,b", "y.png,a,b"), "line 3: there is no file .*x.png, and 2 files of 3 missing"),
        (rows("0.png,a,b", "1.png,a,b", "./0.png,c,d"), "the same image twice, './0.png' in line 2 and in line 4"),
        (rows("0.png,1,b", "1.png,01,b"), "the labels '01' and '1' are the same number"),
    ],
)
def test_mistakes_name_their_line(folder, text, said):
    with pytest.raises(DataError, match=said):
        Index(table(folder, text))


@pytest.mark.filterwarnings("ignore::dspreg.Notice")
def test_all_faults_of_a_line_are_told_at_once(folder):
    text = "path,label,domain,split,weight\n0.png,a,b,train,1\n1.png,,,later,nan\n2.png,a,b,train,1,more\n3.png,a,b\n"
    data = Index(table(folder, text), lenient=True)
    said = [each.title.partition(", line ")[2] for each in data.faults]
    assert [each[:35] for each in said] == [
        "3: the cell of 'label' is empty. Fi",
        "3: the cell of 'domain' is empty. F",
        "3: the cell of 'split' is 'later'; ",
        "3: the cell of 'weight' is 'nan'; w",
        "4: 6 cells where the header has 5. ",
        "5: the cell of 'weight' is empty. F",
    ]
    assert data.domain("b").names == ["0.png"]
    with pytest.raises(DataError, match=r"(?s)6 faults:.*line 3: .*and 1 more"):
        Index(table(folder, text))


def test_where_no_line_can_be_used_several_faults_are_told(folder):
    with pytest.raises(DataError, match=r"(?s)no line that can be used:\n  .*line 2: .*label.*\n  .*line 3: .*domain"):
        Index(table(folder, rows("0.png,,b", "1.png,a,")), lenient=True)


@pytest.mark.filterwarnings("default::dspreg.Notice")
def test_thin_classes_are_told(folder):
    lines = ["0.png,cat,a", "1.png,cat,a", "2.png,dog,b", "3.png,cat,b", "4.png,cat,b"]
    with pytest.warns(Notice) as told:
        dataset = Index(table(folder, rows(*lines)))
    assert dataset.notices == (
        "the domain 'a' has no images of 1 class: dog",
        "the domain 'b' has a single image of 1 class: dog",
    )
    assert [str(w.message) for w in told] == [f"list: {notice}" for notice in dataset.notices]


def test_files_that_are_no_tables(folder):
    with pytest.raises(DataError, match="is not UTF-8 text"):
        Index(table(folder, rows("0.png,größe,b"), "latin-1"))
    with pytest.raises(DataError, match="can't be read"):
        Index(folder / "gone.csv")
    with pytest.raises(DataError, match="can't be read"):
        Index(folder)


def test_it_is_the_same_data_as_its_folders(tmp_path):
    small_tree(tmp_path)
    folders = Folder(tmp_path)
    lines = [f"{name},{name.split('/')[1]},{d}" for d in folders.domains for name in folders.domain(d).names]
    index = Index(table(tmp_path, rows(*lines)))
    for domain in ("art", "photo"):
        assert fingerprint(index.domain(domain)) == fingerprint(folders.domain(domain))


def test_a_pipe_is_no_table_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(DataError, match=r"pipe\.csv is a pipe or a device, not a file"):
        Index(tmp_path / "pipe.csv")


@pytest.mark.parametrize("cell", ["label", "domain"])
def test_a_name_of_5000_digits_is_refused_with_its_line(folder, cell):
    long = "1" * 5000
    lines = ["0.png,1,a", f"1.png,{long},a" if cell == "label" else f"1.png,1,{long}"]
    with pytest.raises(DataError, match=rf"list.csv, line 3: the cell of '{cell}' has 5,000 characters") as told:
        Index(table(folder, rows(*lines)))
    assert len(str(told.value)) < 400


def test_a_path_that_no_disk_can_have_is_missing_like_any_other(tmp_path):
    (tmp_path / "index.csv").write_text(f"path,label,domain\n{'9' * 400}.png,cat,a\n")
    with pytest.raises(DataError, match=r"line 2: there is no file .*9{400}\.png"):
        Index(tmp_path / "index.csv")


# Further columns.


def wide(*lines, columns="path,label,domain,group,split,weight"):
    return f"{columns}\n" + "".join(f"{line}\n" for line in lines)


def test_group_split_and_weight_are_read_and_go_with_their_images(folder):
    lines = ["0.png,cat,a,p1,train,2", "1.png,dog,b,p2,VAL,0.5", "2.png,dog,a,,test,1e1", "3.png,cat,a,p4,,0"]
    dataset = Index(table(folder, wide(*lines)))
    a = dataset.domain("a")
    assert a.names == ["0.png", "2.png", "3.png"]
    assert a.annotations == Annotations(("p1", "", "p4"), ("train", "test", ""), (2.0, 10.0, 0.0))
    assert a.select([2, 0]).annotations == Annotations(("p4", "p1"), ("", "train"), (0.0, 2.0))
    assert dataset.domain("b").annotations == Annotations(("p2",), ("val",), (0.5,))
    assert Index(table(folder, rows("0.png,cat,a"))).domain("a").annotations == Annotations()
    assert a.groups == ("p1", "image 2.png", "p4")  # as evaluations have it, which draw whole groups
    more = Index(table(folder, wide("0.png,cat,a,7", "1.png,dog,a,", columns="path,label,domain,age"))).domain("a")
    assert (more.groups, dict(more.metadata)) == (None, {"age": ("7", "")})


def test_columns_may_have_other_names(folder):
    text = wide("0.png,cat,a,p1", "1.png,dog,a,p2", columns="filename,class,site,patient")
    columns = {"path": "filename", "label": "class", "domain": "site", "group": "patient"}
    dataset = Index(table(folder, text), columns=columns)
    assert dataset.classes == ("cat", "dog")
    assert dataset.domain("a").annotations.groups == ("p1", "p2")
    with pytest.raises(DataError, match=r"the column 'file' is missing. Is 'filename' meant\?"):
        Index(table(folder, text), columns=columns | {"path": "file"})
    with pytest.raises(DataError, match="the column 'weights' is missing"):
        Index(table(folder, text), columns=columns | {"weight": "weights"})


@pytest.mark.filterwarnings("default::dspreg.Notice")
def test_columns_that_are_not_used_are_named_with_what_they_may_be(folder):
    lines = [f"{i}.png,{label},{d},x,7" for i, (label, d) in enumerate([("cat", "a"), ("dog", "a")] * 2)]
    with pytest.warns(Notice, match="2 columns are not used in training: patient_id, age. Is 'patient_id' the group"):
        dataset = Index(table(folder, wide(*lines, columns="path,label,domain,patient_id,age")))
    assert [each.severity for each in dataset.findings] == ["warning"]
    with pytest.warns(Notice, match=r"1 column is not used in training: age\.$"):
        dataset = Index(table(folder, wide(*[line[:-2] for line in lines], columns="path,label,domain,age")))
    assert [each.severity for each in dataset.findings] == ["note"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("1.png,cat,a,p,tain,1", "line 3: the cell of 'split' is 'tain'; wanted train, val, test or nothing"),
        ("1.png,cat,a,p,train,-1", "line 3: the cell of 'weight' is '-1'; wanted a number, 0 or more"),
        ("1.png,cat,a,p,train,nan", "line 3: the cell of 'weight' is 'nan'"),
        ("1.png,cat,a,p,train,inf", "line 3: the cell of 'weight' is 'inf'"),
        ("1.png,cat,a,p,train,", "line 3: the cell of 'weight' is empty. Fill it in, or remove the line. 1 counts"),
        ("1.png,cat,a,p0,test,1", r"1 group is on both sides .* 'p0': train \(0.png\), test \(1.png\)"),
        ("1.png,cat,b,p0,test,1", r"1 group is on both sides"),
    ],
)
def test_mistakes_in_further_columns_name_their_line(folder, line, said):
    with pytest.raises(DataError, match=said):
        Index(table(folder, wide("0.png,cat,a,p0,train,1", line)))


def test_all_mistakes_are_told_at_once_and_a_lenient_reading_leaves_them_out(folder):
    lines = [
        "0.png,cat,a",
        "1.png,,a",
        "x.png,cat,b",
        "2.png,dog,b",
        "0.png,cat,a",
        "y.png,dog,b",
        "a,b,c,d",
        "3.png,cat,b",
    ]
    path = table(folder, rows(*lines))
    with pytest.raises(DataError) as refused:
        Index(path)
    wanted = ["line 3: the cell of 'label'", "in line 2 and in line 6", "line 4: there is no file", "line 8: 4 cells"]
    for said in wanted:
        assert said in str(refused.value)
    assert str(refused.value).startswith("4 faults:\n")
    lenient = Index(path, lenient=True)
    assert [each.severity for each in lenient.faults] == ["error"] * 4
    assert lenient.faults[-1].items == ("line 4: x.png", "line 7: y.png")
    assert {d: lenient.domain(d).names for d in lenient.domains} == {"a": ["0.png"], "b": ["2.png", "3.png"]}


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (["0.1", "2", "0.25"], r"numbers with fractions \(0.1, 0.25\): is it a quantity\?"),
        (["cat|dog", "cat", "dog"], r"1 label looks like several in one \(cat\|dog\)"),
        (["cat;dog", "dog;emu", "dog"], "2 labels look like several in one"),
        (["Cat", "cat", "dog"], "2 classes differ by case, spaces or Unicode form only: 'Cat' = 'cat'"),
        (["caf\u00e9", "cafe\u0301", "x"], "2 classes differ by case, spaces or Unicode form only"),
        (["3", "1", "2"], None),
        (["1.0", "2.0", "x"], None),
        (["version 1.5", "b", "c"], None),
    ],
)
def test_labels_that_look_like_something_else_are_asked_about(folder, labels, said):
    dataset = Index(table(folder, rows(*(f"{i}.png,{label},d" for i, label in enumerate(labels)))))
    told = [each.title for each in dataset.findings]
    assert all(each.severity == "warning" for each in dataset.findings)
    assert len(told) == (said is not None)
    if said:
        assert re.search(said, told[0])


def test_a_group_in_two_domains_is_told(folder):
    lines = ["0.png,cat,a,p1", "1.png,dog,b,p1", "2.png,dog,b,p2", "3.png,cat,a,"]
    dataset = Index(table(folder, wide(*lines, columns="path,label,domain,group")))
    (found,) = dataset.findings
    assert found.kind == "group in several domains"
    assert found.items == ("'p1' in a, b",)


def test_a_new_column_changes_no_fingerprint(folder):
    """So that runs that were begun when it was ignored go on."""
    before = fingerprint(Index(table(folder, rows("0.png,cat,a", "1.png,dog,a"))).domain("a"))
    lines = ["0.png,cat,a,p,train,3", "1.png,dog,a,q,train,1"]
    assert fingerprint(Index(table(folder, wide(*lines))).domain("a")) == before
