"""`hf:owner/set`: tables of the hub as a data set, with columns that are given or guessed."""

import io
import json
import re
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partialmethod

import pytest

from dspreg import Notice
from dspreg.cli import main
from dspreg.config.dataset_ref import DatasetRef
from dspreg.data import open_dataset
from dspreg.download import transfer
from dspreg.download.progress import ProgressLines
from dspreg.errors import ConfigError, DataError, ResourceError
from dspreg.io.locks import holding
from helpers.images import encoded, picture
from helpers.server import serving

pa = pytest.importorskip("pyarrow", reason="needs pyarrow, the extra hf")
from pyarrow import parquet  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*fetching commit:dspreg.Notice")


@pytest.fixture
def host(monkeypatch, tmp_path):
    from huggingface_hub import constants

    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("DSPREG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(transfer, "PAUSES", ())
    with serving() as server:
        template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        yield server


def table(columns, names=None):
    made = pa.table(columns)
    if names:
        features = {column: {"names": list(each), "_type": "ClassLabel"} for column, each in names.items()}
        made = made.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    out = io.BytesIO()
    parquet.write_table(made, out)
    return out.getvalue()


PICTURES = [encoded(picture(i), "PNG" if i % 2 else "JPEG") for i in range(12)]
LABELS = [i % 3 for i in range(12)]
SITES = ["north" if i < 6 else "south" for i in range(12)]


def usual(**change):
    columns = {
        "image": [{"bytes": p, "path": f"{i}.{'png' if i % 2 else 'jpg'}"} for i, p in enumerate(PICTURES)],
        "label": LABELS,
        "domain": SITES,
    }
    return {name: values for name, values in {**columns, **change}.items() if values is not None}


def test_images_labels_and_domains_come_as_they_are(host):
    names = {"label": ["emu", "cat", "dog"]}
    host.put_dataset("owner/pets", {"data/train.parquet": table(usual(), names), "card.md": b"x"})
    with pytest.warns(Notice, match=r"columns are guessed: image is 'image', label is 'label', domain is 'domain'"):
        data = open_dataset("hf:owner/pets")
    assert (data.name, data.domains, data.classes) == ("owner/pets", ("north", "south"), ("cat", "dog", "emu"))
    for name in data.domains:
        domain = data.domain(name)
        wanted = {
            (PICTURES[i], names["label"][LABELS[i]]) for i in range(12) if SITES[i] == name
        }  # the bytes themselves
        assert {(f.read_bytes(), data.classes[y]) for f, y in zip(domain.files, domain.labels, strict=True)} == wanted
        assert len(domain) == len(wanted)


def test_the_second_time_nothing_is_fetched_and_without_a_network_neither(host):
    host.put_dataset("owner/pets", {"a.parquet": table(usual())})
    with pytest.warns(Notice):
        first = open_dataset("hf:owner/pets").domain("north").hashes
    asked = len([path for path, _ in host.asked if "resolve" in path])
    assert open_dataset("hf:owner/pets").domain("north").hashes == first
    assert len([path for path, _ in host.asked if "resolve" in path]) == asked
    host.files.clear()
    with pytest.warns(Notice, match="as it was fetched before"):
        assert open_dataset("hf:owner/pets").domain("north").hashes == first


def test_what_is_fetched_and_where_to_is_said(host):
    content = table(usual())
    host.put_dataset("owner/pets", {"a.parquet": content, "b.parquet": content})
    said = r"owner/pets: fetching commit c{12}, 2 tables with 0.0 MB, into .*owner--pets/c{40}$"
    with pytest.warns(Notice, match="columns are guessed"), pytest.warns(Notice, match=said):
        open_dataset("hf:owner/pets")


def test_never_fetched_and_no_network(host):
    with pytest.raises(ResourceError, match=r"hf:owner/pets was not fetched before, and the hub has no data set"):
        open_dataset("hf:owner/pets")


def test_interrupted_twice(host):
    host.put_dataset("owner/pets", {"a.parquet": table(usual())}, cuts=[500, 700])
    for _ in range(2):
        with pytest.raises(ResourceError, match="ended the connection"):
            open_dataset("hf:owner/pets")
    with pytest.warns(Notice):
        assert len(open_dataset("hf:owner/pets").domain("north")) == 6
    assert [part for path, part in host.asked if "resolve" in path] == [None, "bytes=500-", "bytes=1200-"]


def test_data_get_brings_it_into_the_cache_with_progress(host, capsys, monkeypatch):
    monkeypatch.setattr(ProgressLines, "__init__", partialmethod(ProgressLines.__init__, every=0.0))
    host.put_dataset("owner/pets", {"a.parquet": table(usual(label=None, kind=LABELS))})
    assert main(["data", "get", "hf:owner/pets", "--label-column", "kind"]) == 0
    out, err = capsys.readouterr()
    assert re.fullmatch(r"hf:owner/pets\?label=kind: 12 images in \S+, from commit c{40}\n", out)
    assert "MB/s" in err
    asked = len([path for path, _ in host.asked if "resolve" in path])
    assert len(open_dataset("hf:owner/pets?label=kind").domain("north")) == 6
    assert len([path for path, _ in host.asked if "resolve" in path]) == asked == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["hf:owner/pets", "--from", "x.zip"], "--from is for benchmarks"),
        (["PACS", "--label-column", "kind"], "and not of 'PACS'"),
        (["hf:owner"], "is no data set of the hub"),
    ],
)
def test_what_data_get_refuses(host, capsys, arguments, says):
    assert main(["data", "get", *arguments]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore::dspreg.Notice")
def test_two_that_open_it_at_once_fetch_it_once(host):
    host.put_dataset("owner/pets", {"a.parquet": table(usual())}, drip=0.01)
    with ThreadPoolExecutor(3) as pool:
        opened = list(pool.map(lambda _: open_dataset("hf:owner/pets"), range(3)))
    assert len([path for path, _ in host.asked if "resolve" in path]) == 1
    first = opened[0].domain("north")
    assert {file.read_bytes() for name in ("north", "south") for file in opened[0].domain(name).files} == set(PICTURES)
    assert all(each.domain("north").hashes == first.hashes for each in opened)


def test_who_waits_says_so_once(host, tmp_path):
    host.put_dataset("owner/pets", {"a.parquet": table(usual())})
    place = tmp_path / "cache" / "hub" / "owner--pets"
    place.mkdir(parents=True)
    with ThreadPoolExecutor(1) as pool, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with holding(place / f".{'c' * 40}.lock"):
            opening = pool.submit(open_dataset, "hf:owner/pets")
            until = time.monotonic() + 30
            while not any("waiting" in str(each.message) for each in said) and time.monotonic() < until:
                time.sleep(0.01)
        assert opening.result().domains == ("north", "south")
    assert [str(each.message) for each in said if "waiting" in str(each.message)] == [
        "owner/pets: another process is fetching it; waiting"
    ]


def test_a_newer_commit_that_did_not_come_whole_hides_no_earlier_one(host):
    host.put_dataset("owner/pets", {"a.parquet": table(usual())})
    with pytest.warns(Notice):
        first = open_dataset("hf:owner/pets").domain("north").hashes
    host.put_dataset("owner/pets", {"a.parquet": table(usual(label=[0] * 12))}, commit="d" * 40, cuts=[100])
    with pytest.raises(ResourceError, match="ended the connection"):
        open_dataset("hf:owner/pets")
    host.files.clear()
    with pytest.warns(Notice, match="commit cccccccccccc, as it was fetched before"):
        assert open_dataset("hf:owner/pets").domain("north").hashes == first


def test_what_a_killed_process_left_is_cleared_away(host, tmp_path):
    left = tmp_path / "cache" / "hub" / "owner--pets" / ("c" * 40) / ".images-0123456789abcdef.99.part"
    left.mkdir(parents=True)
    (left / "half").write_bytes(b"x")
    host.put_dataset("owner/pets", {"a.parquet": table(usual())})
    with pytest.warns(Notice):
        open_dataset("hf:owner/pets")
    assert len([*left.parent.iterdir()]) == 1
    assert not left.exists()


def test_columns_of_other_names_by_flags_are_part_of_the_record(host, capsys):
    strange = {"photo_bytes": PICTURES, "kind": [f"k{y}" for y in LABELS], "where": SITES, "note": ["x"] * 12}
    host.put_dataset("owner/pets", {"a.parquet": table(strange)})
    assert main(["data", "verify", "hf:owner/pets"]) == 2
    assert (
        "which column of owner/pets is the label? Add --label-column; it has photo_bytes, kind"
        in capsys.readouterr().err
    )
    flags = ["--label-column", "kind", "--domain-column", "where", "--image-column", "photo_bytes"]
    assert main(["data", "verify", "hf:owner/pets", *flags]) in (0, 3)
    assert "12 images, 2 domains, 3 classes" in capsys.readouterr().out
    assert main(["train", "--dataset", "hf:owner/pets", "--target", "north", "--print-config", *flags]) == 0
    assert "dataset: hf:owner/pets?image=photo_bytes&label=kind&domain=where" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"label": ["a"] * 11 + [None]}, "has None in 'label'"),
        ({"image": [{"bytes": None, "path": "x.jpg"}] * 12}, "has no image in 'image'"),
        ({"domain": ["a/b"] * 6 + ["a_b"] * 6}, "can't be names of folders beside each other"),
        ({"domain": ["A"] * 6 + ["a"] * 6}, "can't be names of folders beside each other"),
        ({"label": [0.5] * 12}, "wanted a name or a whole number"),
    ],
)
def test_rows_that_can_not_be_used_are_named(host, change, says):
    host.put_dataset("owner/pets", {"a.parquet": table(usual(**change))})
    with pytest.warns(Notice), pytest.raises(DataError, match=says):
        open_dataset("hf:owner/pets")


@pytest.mark.parametrize("evil", ["../../evil", "/tmp/evil", "..", ".", "a\nb"])
def test_names_from_a_table_stay_inside(host, tmp_path, evil):
    rows = usual(
        image=[{"bytes": p, "path": evil} for p in PICTURES], domain=[evil] * 6 + ["south"] * 6, label=[evil] * 12
    )
    host.put_dataset("owner/pets", {"a.parquet": table(rows)})
    with pytest.warns(Notice):
        data = open_dataset("hf:owner/pets")
    inside = tmp_path / "cache" / "hub"
    assert all(file.resolve().is_relative_to(inside.resolve()) for d in data.domains for file in data.domain(d).files)
    assert not [path for path in tmp_path.rglob("*evil*") if not path.is_relative_to(inside)]


def test_a_damaged_table(host):
    host.put_dataset("owner/pets", {"a.parquet": b"PAR1" + bytes(100)})
    with pytest.raises(DataError, match="can't be read as a table"):
        open_dataset("hf:owner/pets")


@pytest.mark.parametrize(
    "names", [("data/train (1).parquet", ".more/0.parquet"), ("data/0.parquet", "data--0.parquet")]
)
def test_tables_may_have_any_name(host, names):
    """No odd name ends in an error, and two of them never become one file."""
    halves = [{column: values[:6] for column, values in usual().items()}]
    halves.append({column: values[6:] for column, values in usual().items()})
    host.put_dataset("owner/pets", {name: table(half) for name, half in zip(names, halves, strict=True)})
    with pytest.warns(Notice, match="columns are guessed"):
        data = open_dataset("hf:owner/pets")
    found = {file.read_bytes() for name in data.domains for file in data.domain(name).files}
    assert found == set(PICTURES)


def test_numbers_keep_their_order(host):
    host.put_dataset("owner/pets", {"a.parquet": table(usual(label=list(range(12))))})
    with pytest.warns(Notice):
        assert open_dataset("hf:owner/pets").classes == tuple(f"{i:02}" for i in range(12))


@pytest.mark.parametrize(
    "text", ["hf:", "hf:pets", "hf:a/b/c", "hf:../x", "hf:a/b@../c", "hf:a/b?size=3", "hf:a/b?label="]
)
def test_what_is_no_name(text):
    with pytest.raises(ConfigError):
        open_dataset(text)


def test_columns_are_for_the_hub_alone():
    assert str(DatasetRef.parse("hf:a/b@v1?label=x%26y")) == "hf:a/b@v1?label=x%26y"
    ref = DatasetRef.parse("hf:a/b@v1").with_columns({"label": "x&y", "domain": "z"})
    assert (ref.repo, ref.revision, ref.columns()) == ("a/b", "v1", {"label": "x&y", "domain": "z"})
    assert DatasetRef.parse(str(ref)) == ref
    with pytest.raises(ConfigError, match="and not of 'folder:x'"):
        DatasetRef.parse("folder:x").with_columns({"label": "y"})


def test_it_trains(host, tmp_path, capsys):
    pictures = [encoded(picture(i)) for i in range(48)]
    rows = {
        "image": [{"bytes": p, "path": None} for p in pictures],
        "label": [i % 2 for i in range(48)],
        "domain": [("a", "b", "c")[i % 3] for i in range(48)],
    }
    host.put_dataset("owner/pets", {"a.parquet": table(rows)})
    options = ["--target", "c", "--model", "small-cnn", "--steps", "2", "--image-size", "28", "--batch-size", "4"]
    options += ["--device", "cpu", "--workers", "0"]
    code = main(["train", "--dataset", "hf:owner/pets", *options, "--out", str(tmp_path / "run")])
    assert code == 0, capsys.readouterr().err
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert "hf:owner/pets" in json.dumps(run)
