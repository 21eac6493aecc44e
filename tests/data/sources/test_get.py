"""Each benchmark from its sources in their own layout: interrupted, resumed, verified, split as DomainBed splits it."""

import hashlib
import importlib
import importlib.util
import os
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from torchvision.datasets import ImageFolder

from dspreg.cli import main
from dspreg.data import PACS, VLCS, DomainNet, Images, OfficeHome, TerraIncognita, split
from dspreg.data.sources import get as getting
from dspreg.data.sources import get_dataset
from dspreg.data.sources.catalogue import SOURCES, Source
from dspreg.download import transfer
from dspreg.download.manifest import NAME, Manifest, read_manifest, take_manifest
from dspreg.download.transfer import Remote
from dspreg.errors import ConfigError, DataError, IntegrityError, InUse, Notice, ResourceError
from helpers.benchmark_sources import ARCHIVE_SOURCES, archives_of, counts_of, original_files, table_of, tar_of, zip_of
from helpers.images import encoded, picture
from helpers.server import everything_below, serving

NEEDS_PYARROW = pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="needs pyarrow, the extra hf")
EACH = {DomainNet: 1}  # 345 classes are enough


@pytest.fixture
def host(monkeypatch, tmp_path):
    from huggingface_hub import constants

    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("DSPREG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(transfer, "PAUSES", ())
    with serving() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        yield server


def publish(made, host, monkeypatch, files, *, hub=False):
    """Have the catalogue's places of a benchmark on this host; the hub's only if asked for, else 404."""
    counts = counts_of(made, files)
    monkeypatch.setattr(made, "counts", counts)
    packed = archives_of(made, files)
    for name, data in packed.items():
        host.put(f"/{name}", data)
    there = tuple(
        replace(source, files=tuple(_here(file, host, packed) for file in source.files))
        for source in SOURCES[made.name]
    )
    monkeypatch.setitem(getting.SOURCES, made.name, there)
    monkeypatch.setattr(getting, "DUPLICATES", _here(getting.DUPLICATES, host, packed))
    if not hub:
        monkeypatch.setattr(getting, "known_manifest", lambda name: None)
    return there


def _here(file, host, packed):
    sha256 = hashlib.sha256(packed[file.name]).hexdigest() if file.sha256 and file.name in packed else None
    return Remote(f"{host.url}/{file.name}", file.name, None, sha256)


def opened(made, root):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        return made(root)


def require_domainbeds_splits(made, root, files, tmp_path):
    """By torchvision's list of the original files and NumPy's shuffle, without a line of ours."""
    original = tmp_path / "original"
    for path, content in files.items():
        (original / path).parent.mkdir(parents=True, exist_ok=True)
        (original / path).write_bytes(content)
    data = opened(made, root)
    for position, domain in enumerate(sorted(os.listdir(original))):
        theirs = ImageFolder(original / domain)
        ours = data.domain(domain)
        assert isinstance(ours, Images)
        for trial in (0, 1):
            seed = int(hashlib.md5(str((trial, position)).encode()).hexdigest(), 16) % 2**31
            keys = list(range(len(theirs)))
            np.random.RandomState(seed).shuffle(keys)
            held_out = [theirs.samples[i] for i in keys[: int(0.2 * len(keys))]]
            _, out = split(len(ours), trial, position)
            wanted = [(hashlib.sha256(Path(path).read_bytes()).hexdigest(), label) for path, label in held_out]
            assert [(ours.hashes[i], ours.labels[i]) for i in out] == wanted


@pytest.mark.parametrize("made", ARCHIVE_SOURCES, ids=lambda made: made.name)
def test_from_its_archives_interrupted_twice(made, host, monkeypatch, tmp_path):
    files = original_files(made, EACH.get(made, 3))
    there = publish(made, host, monkeypatch, files)
    source = next(source for source in there if not source.repo)
    main_file = max(source.files, key=lambda file: len(host.files[f"/{file.name}"].content)).name
    size = len(host.files[f"/{main_file}"].content)
    for other in there:  # so that no other place has it
        if other is not source and not other.repo:
            monkeypatch.setitem(getting.SOURCES, made.name, (source,))
    root = tmp_path / "data"

    class Pressed(KeyboardInterrupt):
        pass

    def press(name, done, total):
        if name == main_file:
            raise Pressed

    monkeypatch.setattr(transfer, "CHUNK", 1024)
    with pytest.raises(Pressed):
        get_dataset(made.name, root, progress=press)
    assert not (root / made.subfolder).exists()
    host.files[f"/{main_file}"].cuts = [(size - 1024) // 2]
    with pytest.raises((ResourceError, DataError), match="no place delivered"):
        get_dataset(made.name, root)
    assert not (root / made.subfolder).exists()
    found = get_dataset(made.name, root)

    parts = [part for path, part in host.asked if path == f"/{main_file}"]
    assert parts[0] is None
    assert [part is not None for part in parts[1:]] == [True, True]  # both times the rest was asked for
    assert found.source == source.name
    assert found.images == len(files)
    assert sorted(os.listdir(root)) == [made.subfolder]
    tree = {
        path: content for path, (kind, content) in everything_below(root / made.subfolder).items() if kind == "file"
    }
    tree.pop(NAME)
    assert tree == files
    require_domainbeds_splits(made, root, files, tmp_path)
    assert len(read_manifest(root / made.subfolder / NAME).files) == len(files)


@NEEDS_PYARROW
@pytest.mark.parametrize("made", [PACS, OfficeHome, VLCS], ids=lambda made: made.name)
def test_from_tables_of_the_hub_interrupted_twice(made, host, monkeypatch, tmp_path):
    files = original_files(made, 2)
    there = publish(made, host, monkeypatch, files)
    source = next(source for source in there if source.repo)
    monkeypatch.setitem(getting.SOURCES, made.name, (source,))
    host.put_dataset(source.repo, {**table_of(files, made), "README.md": b"hello"})
    first = next(path for path in host.files if path.endswith("00000-of-00002.parquet"))
    host.files[first].cuts = [1000, 1500]
    for _ in range(2):
        with pytest.raises((ResourceError, DataError), match="ended the connection"):
            get_dataset(made.name, tmp_path / "data")
    found = get_dataset(made.name, tmp_path / "data")
    assert [part for path, part in host.asked if path == first] == [None, "bytes=1000-", "bytes=2500-"]
    assert not any(path.endswith("README.md") for path, _ in host.asked)
    assert f"commit {'c' * 40} of {source.repo}" in found.notes
    require_domainbeds_splits(made, tmp_path / "data", files, tmp_path)


@NEEDS_PYARROW
def test_rows_without_names_get_them_back_by_their_contents(host, monkeypatch, tmp_path):
    files = original_files(PACS, 2)
    first = next(iter(files))
    files[first.replace(".jpg", "_same.jpg")] = files[first]  # the same bytes under two names
    publish(PACS, host, monkeypatch, files, hub=True)
    for path, content in files.items():
        (tmp_path / "known" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "known" / path).write_bytes(content)
    known = take_manifest(tmp_path / "known", {})
    host.put_dataset("flwrlabs/pacs", table_of(files, PACS, names=False))

    monkeypatch.setattr(getting, "known_manifest", lambda name: known)
    found = get_dataset("PACS", tmp_path / "data")
    assert "every file is byte for byte as in dspreg's list" in found.notes
    require_domainbeds_splits(PACS, tmp_path / "data", files, tmp_path)


@NEEDS_PYARROW
def test_rows_whose_names_are_lost_are_refused_and_the_next_place_is_asked(host, monkeypatch, tmp_path):
    files = original_files(PACS, 1)
    publish(PACS, host, monkeypatch, files)
    host.put_dataset("flwrlabs/pacs", table_of(files, PACS, names=False))
    said = []
    found = get_dataset("PACS", tmp_path / "data", say=said.append)
    assert found.source == "Google Drive, DomainBed's copy"
    assert any("DomainBed's order, and with it the split, can't be restored" in line for line in said)


def test_without_pyarrow_the_next_place_is_asked(host, monkeypatch, tmp_path):
    files = original_files(PACS, 1)
    publish(PACS, host, monkeypatch, files)

    def missing():
        raise ConfigError("tables of the hub are read by pyarrow: pip install 'dspreg[hf]'")

    monkeypatch.setattr(getting, "require_pyarrow", missing)
    said = []
    assert get_dataset("PACS", tmp_path / "data", say=said.append).images == len(files)
    assert "  no: tables of the hub are read by pyarrow: pip install 'dspreg[hf]'" in said


def test_the_levels_of_parts_are_left_out(host, monkeypatch, tmp_path):
    files = original_files(VLCS, 3)
    publish(VLCS, host, monkeypatch, files)
    parts = ("train", "crossval", "test")
    deeper = {
        f"VLCS/{domain}/{parts[i % 3]}/{rest}": content
        for i, (path, content) in enumerate(files.items())
        for domain, _, rest in [path.partition("/")]
    }
    (tmp_path / "own.tar.gz").write_bytes(tar_of(deeper))
    get_dataset("VLCS", tmp_path / "data", [str(tmp_path / "own.tar.gz")])
    require_domainbeds_splits(VLCS, tmp_path / "data", files, tmp_path)


@pytest.mark.parametrize("spelling", ["Real_World", "RealWorld", "real world"])
def test_other_spellings_of_domains(host, monkeypatch, tmp_path, spelling):
    files = original_files(OfficeHome, 1)
    publish(OfficeHome, host, monkeypatch, files)
    own = {path.replace("Real World", spelling): content for path, content in files.items()}
    (tmp_path / "own.zip").write_bytes(zip_of(own))
    get_dataset("OfficeHome", tmp_path / "data", [str(tmp_path / "own.zip")])
    require_domainbeds_splits(OfficeHome, tmp_path / "data", files, tmp_path)


def test_from_a_folder_of_ones_own_which_stays_as_it_is(host, monkeypatch, tmp_path):
    files = original_files(PACS, 2)
    publish(PACS, host, monkeypatch, files)
    for path, content in files.items():
        (tmp_path / "own" / "kfold" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "own" / "kfold" / path).write_bytes(content)
    before = everything_below(tmp_path / "own")
    found = get_dataset("PACS", tmp_path / "data", [str(tmp_path / "own")])
    assert everything_below(tmp_path / "own") == before
    assert found.source == "files of your own"
    one = next(iter(files))
    assert not os.path.samefile(tmp_path / "own" / "kfold" / one, tmp_path / "data" / "PACS" / one)
    assert host.asked == []


def test_from_an_address_of_ones_own(host, monkeypatch, tmp_path):
    files = original_files(PACS, 1)
    publish(PACS, host, monkeypatch, files)
    url = host.put("/mirror/my%20pacs.zip", zip_of({f"x/y/{path}": content for path, content in files.items()}))
    host.files["/mirror/my pacs.zip"] = host.files.pop("/mirror/my%20pacs.zip")
    assert get_dataset("PACS", tmp_path / "data", [url]).source == "the address you gave"


@pytest.mark.parametrize("pack", [zip_of, tar_of])
def test_from_an_address_that_does_not_say_what_it_gives(host, monkeypatch, tmp_path, pack):
    """As those of Google Drive: the bytes say that it is an archive."""
    files = original_files(PACS, 1)
    publish(PACS, host, monkeypatch, files)
    host.put("/uc", pack({f"PACS/{path}": content for path, content in files.items()}))
    found = get_dataset("PACS", tmp_path / "data", [f"{host.url}/uc?export=download&id=1JFr8f805nMUelQ"])
    assert found.images == len(files)
    host.put("/uc", b"no archive of any kind")
    with pytest.raises(DataError, match=r"uc is no archive .*and no table"):
        get_dataset("PACS", tmp_path / "other", [f"{host.url}/uc"])


def test_two_addresses_that_end_in_one_name(host, monkeypatch, tmp_path):
    """One after the other, the second is asked; together, both are."""
    files = original_files(PACS, 1)
    publish(PACS, host, monkeypatch, files)
    half = len(files) // 2
    one, other = dict(list(files.items())[:half]), dict(list(files.items())[half:])
    first = host.put("/a/PACS.zip", zip_of({f"PACS/{path}": content for path, content in one.items()}))
    second = host.put("/b/PACS.zip", zip_of({f"PACS/{path}": content for path, content in files.items()}))
    third = host.put("/c/PACS.zip", zip_of({f"PACS/{path}": content for path, content in other.items()}))
    with pytest.raises(DataError, match="there is no folder"):
        get_dataset("PACS", tmp_path / "data", [first])
    assert get_dataset("PACS", tmp_path / "data", [second]).images == len(files)
    assert get_dataset("PACS", tmp_path / "more", [first, third]).images == len(files)


def test_a_folder_with_the_archives_of_domain_net(host, monkeypatch, tmp_path):
    files = original_files(DomainNet, 1)
    publish(DomainNet, host, monkeypatch, files)
    (tmp_path / "own").mkdir()
    for name, data in archives_of(DomainNet, files).items():
        (tmp_path / "own" / name).write_bytes(data)
    found = get_dataset("DomainNet", tmp_path / "data", [str(tmp_path / "own")])
    assert host.asked == []
    assert found.images == len(files)
    assert "3 duplicates left out, as in DomainBed" in found.notes


def test_a_list_of_duplicates_that_does_not_fit_is_refused(host, monkeypatch, tmp_path):
    files = original_files(DomainNet, 1)
    publish(DomainNet, host, monkeypatch, files)
    (tmp_path / "own").mkdir()
    for name, data in archives_of(DomainNet, files).items():
        (tmp_path / "own" / name).write_bytes(data)
    (tmp_path / "own" / "domain_net_duplicates.txt").write_text("clipart/zigzag/none.jpg\n")
    with pytest.raises(DataError, match="another version of DomainNet"):
        get_dataset("DomainNet", tmp_path / "data", [str(tmp_path / "own")])
    (tmp_path / "own" / "domain_net_duplicates.txt").write_text("../../precious\n")
    with pytest.raises(DataError, match="is no list of images"):
        get_dataset("DomainNet", tmp_path / "data", [str(tmp_path / "own")])


def test_the_catalogue_takes_domainbeds_list_by_its_checksum():
    listed = SOURCES["DomainNet"][0].files[0]
    assert (listed.name, listed.size) == ("domain_net_duplicates.txt", 365_663)
    assert listed.sha256 == "a52b4ab70203f4f3df381077694dba3e33ff44c26407e1c5faca76919c702770"


# Places that fail.


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ({"status": 403}, "answered 403"),
        ({"status": 500}, "answered 500"),
        ({"content": b"<html><title>Quota exceeded</title></html>"}, "sent a web page ('Quota exceeded')"),
        ({"content": b"PK\3\4 and nothing else"}, "is damaged, or no archive"),
        ({"content": zip_of({"../evil": b"x"})}, "would lie outside"),
        ({"content": zip_of({"readme": b"x"})}, "there is no folder art_painting"),
    ],
)
def test_the_next_place_is_asked(host, monkeypatch, tmp_path, fault, says):
    files = original_files(PACS, 1)
    publish(PACS, host, monkeypatch, files)
    host.put("/bad.zip", **{"content": b"", **fault})
    good = getting.SOURCES["PACS"][1]
    bad = Source("a bad place", (Remote(f"{host.url}/bad.zip", "bad.zip"),))
    monkeypatch.setitem(getting.SOURCES, "PACS", (bad, good))
    said = []
    assert get_dataset("PACS", tmp_path / "data", say=said.append).source == good.name
    assert any(says in line for line in said)
    assert sorted(os.listdir(tmp_path / "data")) == ["PACS"]
    assert not (tmp_path / "evil").exists()


def test_an_archive_that_its_host_has_mended_is_fetched_again(host, monkeypatch, tmp_path):
    """What was whole but no data set stays there, and would be taken for the file for ever."""
    files, root = original_files(PACS, 1), tmp_path / "data"
    publish(PACS, host, monkeypatch, files)
    url = host.put("/mine.zip", zip_of({"readme": b"the wrong one"}))
    for _ in range(2):
        with pytest.raises(DataError, match=r"there is no folder art_painting(?s:.*)kept in \S*\.PACS\.download"):
            get_dataset("PACS", root, [url])
    assert {path.name for path in root.rglob("*") if path.is_file()} == {"mine.zip", ".mine.zip.json"}
    assert host.asked == [("/mine.zip", None), ("/mine.zip", "bytes=0-0")]  # the same: it did not come again
    host.put("/mine.zip", zip_of(files))
    assert get_dataset("PACS", root, [url]).images == len(files)
    assert sorted(os.listdir(root)) == ["PACS"]


def test_a_wrong_checksum_is_kept_and_the_next_place_asked(host, monkeypatch, tmp_path):
    files = original_files(PACS, 1)
    publish(PACS, host, monkeypatch, files)
    good = getting.SOURCES["PACS"][1]
    bad = Source("a bad place", (replace(good.files[0], sha256="0" * 64),))
    monkeypatch.setitem(getting.SOURCES, "PACS", (bad,))
    with pytest.raises(DataError, match=r"SHA-256 .* where 0{64} is known; it is kept as .*PACS\.zip\.bad"):
        get_dataset("PACS", tmp_path / "data")
    assert [path.name for path in (tmp_path / "data").rglob("*.bad")] == ["PACS.zip.bad"]
    monkeypatch.setitem(getting.SOURCES, "PACS", (bad, good))
    assert get_dataset("PACS", tmp_path / "data").source == good.name


@pytest.mark.parametrize("fault", ["missing", "broken"])
def test_what_is_not_whole_does_not_get_its_name(host, monkeypatch, tmp_path, fault):
    files = original_files(PACS, 2)
    publish(PACS, host, monkeypatch, files)
    name = next(iter(files))
    if fault == "missing":
        del files[name]
    else:
        files[name] = files[name][:100]
    (tmp_path / "own.zip").write_bytes(zip_of(files))
    with pytest.raises(DataError, match=r"PACS is not whole: .*(1 missing|truncated)"):
        get_dataset("PACS", tmp_path / "data", [str(tmp_path / "own.zip")])
    assert os.listdir(tmp_path / "data") == []  # nor stays what was unpacked


def test_terra_incognita_of_todays_lists_is_taken_whatever_its_number(host, monkeypatch, tmp_path):
    files = original_files(TerraIncognita, 2)
    publish(TerraIncognita, host, monkeypatch, files)
    monkeypatch.setattr(TerraIncognita, "counts", dict.fromkeys(TerraIncognita.domains, 4000))
    found = get_dataset("TerraIncognita", tmp_path / "data")
    assert found.images == len(files)
    assert any("are published" in note for note in found.notes)


def test_a_missing_photograph_is_named(host, monkeypatch, tmp_path):
    files = original_files(TerraIncognita, 1)
    publish(TerraIncognita, host, monkeypatch, files)
    packed = archives_of(TerraIncognita, files)
    empty = tar_of({"eccv_18_all_images_sm/none.jpg": b"x"})
    for name, data in {**packed, "eccv_18_all_images_sm.tar.gz": empty}.items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match=f"{len(files)} photographs of the annotations are missing"):
        get_dataset("TerraIncognita", tmp_path / "data", [str(tmp_path / name) for name in packed])


def test_nobody_reachable_says_what_to_fetch_and_where_to_put_it(host, monkeypatch, tmp_path, capsys):
    files = original_files(VLCS, 1)
    publish(VLCS, host, monkeypatch, files)
    dead = Source("a dead place", (Remote("http://127.0.0.1:1/VLCS.tar.gz", "VLCS.tar.gz"),))
    monkeypatch.setitem(getting.SOURCES, "VLCS", (dead,))
    root = tmp_path / "data"
    assert main(["data", "get", "VLCS", "--root", str(root)]) == 6
    said = capsys.readouterr().err
    assert "a dead place: 127.0.0.1:1 can't be reached" in said
    assert "http://127.0.0.1:1/VLCS.tar.gz  as VLCS.tar.gz" in said
    assert f"dspreg data get VLCS --root {root} --from FOLDER" in said
    assert f"into {root}/VLCS, as DomainBed has them" in said
    assert list(root.iterdir()) == []
    (tmp_path / "FOLDER").mkdir()  # and what it says works
    (tmp_path / "FOLDER" / "VLCS.tar.gz").write_bytes(archives_of(VLCS, files)["VLCS.tar.gz"])
    assert main(["data", "get", "VLCS", "--root", str(root), "--from", str(tmp_path / "FOLDER")]) == 0


def test_what_came_and_is_another_data_set_is_exit_code_3(host, monkeypatch, tmp_path, capsys):
    publish(VLCS, host, monkeypatch, original_files(VLCS, 1))
    url = host.put("/other.zip", zip_of({"readme": b"x"}))
    assert main(["data", "get", "VLCS", "--root", str(tmp_path / "data"), "--from", url]) == 3
    assert "there is no folder Caltech101, LabelMe, SUN09, VOC2007" in capsys.readouterr().err


def test_two_at_once(host, monkeypatch, tmp_path):
    publish(PACS, host, monkeypatch, original_files(PACS, 1))
    root = tmp_path / "data"

    def meanwhile(line):
        with pytest.raises(InUse, match="another process is fetching PACS"):
            get_dataset("PACS", root)

    get_dataset("PACS", root, say=meanwhile)


def test_a_lock_that_was_taken_away_meanwhile_locks_nothing(host, monkeypatch, tmp_path):
    """Its last holder removes it, and a third process makes a new one."""
    import fcntl

    publish(PACS, host, monkeypatch, original_files(PACS, 1))
    lock, own = tmp_path / "data" / ".PACS.lock", fcntl.flock

    def late(file, how):
        lock.unlink(missing_ok=True)
        return own(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(InUse, match="another process is fetching PACS"):
        get_dataset("PACS", tmp_path / "data")
    monkeypatch.undo()
    assert not (tmp_path / "data" / "PACS").exists()


def test_one_that_comes_when_another_has_just_finished_takes_what_is_there(host, monkeypatch, tmp_path):
    """It had looked before there was anything, and got the lock when the other let go of it."""
    files, root = original_files(PACS, 1), tmp_path / "data"
    publish(PACS, host, monkeypatch, files)
    look, looked = getting._Job.find_complete, []

    def look_too_early(job):
        found = look(job)
        looked.append(found)
        if len(looked) == 1:
            get_dataset("PACS", root)
        return found

    monkeypatch.setattr(getting._Job, "find_complete", look_too_early)
    found = get_dataset("PACS", root)
    assert found.notes == ("it was there already",)
    assert found.images == len(files)


@NEEDS_PYARROW
def test_a_place_that_failed_leaves_no_note(host, monkeypatch, tmp_path):
    """The commit of a repository of the hub that was not taken is not where the data are from."""
    files = original_files(PACS, 1)
    publish(PACS, host, monkeypatch, files)
    host.put_dataset("flwrlabs/pacs", table_of(files, PACS, names=False))
    found = get_dataset("PACS", tmp_path / "data")
    assert found.source == "Google Drive, DomainBed's copy"
    assert not any("flwrlabs" in note for note in found.notes)


# Afterwards.


def test_a_second_call_fetches_nothing_and_damage_is_seen(host, monkeypatch, tmp_path):
    files = original_files(PACS, 1)
    publish(PACS, host, monkeypatch, files)
    get_dataset("PACS", tmp_path / "data")
    asked = len(host.asked)
    assert get_dataset("PACS", tmp_path / "data").source == ""
    assert len(host.asked) == asked
    (tmp_path / "data" / "PACS" / next(iter(files))).write_bytes(b"shorter")
    with pytest.raises(DataError, match="1 file missing or of another size"):
        get_dataset("PACS", tmp_path / "data")


def test_a_folder_of_somebody_else_is_not_touched(host, monkeypatch, tmp_path):
    publish(PACS, host, monkeypatch, original_files(PACS, 1))
    (tmp_path / "data" / "PACS").mkdir(parents=True)
    (tmp_path / "data" / "PACS" / "mine").write_text("x")
    with pytest.raises(DataError, match=r"is there already, and not from `dspreg data get`"):
        get_dataset("PACS", tmp_path / "data")
    assert everything_below(tmp_path / "data" / "PACS") == {"mine": ("file", b"x")}


def test_verifying_afterwards_decodes_nothing_until_a_file_changes(host, monkeypatch, tmp_path, capsys):
    verifying = importlib.import_module("dspreg.data.verify")
    files = original_files(PACS, 2)
    publish(PACS, host, monkeypatch, files)
    looks = []
    real = verifying._look_at_file
    monkeypatch.setattr(verifying, "_look_at_file", lambda *args: looks.append(args) or real(*args))
    root = str(tmp_path / "data")
    assert main(["data", "get", "PACS", "--root", root]) == 0
    assert len(looks) == len(files)
    data = opened(PACS, root)
    verifying.check_once(data, [verifying_fingerprint(data, name) for name in data.domains])  # as a training does
    assert main(["data", "verify", "PACS", "--root", root]) == 0
    assert len(looks) == len(files)
    assert "no file was touched since" in capsys.readouterr().out
    assert main(["data", "verify", "PACS", "--root", root, "--again"]) == 0
    assert len(looks) == 2 * len(files)
    path = tmp_path / "data" / "PACS" / next(iter(files))
    path.write_bytes(encoded(picture(99))[:200])
    assert main(["data", "verify", "PACS", "--root", root]) == 3
    assert "truncated" in capsys.readouterr().out


def verifying_fingerprint(data, name):
    from dspreg.data import fingerprint

    return fingerprint(data.domain(name))


def test_changes_against_the_known_list_are_said(host, monkeypatch, tmp_path):
    files = original_files(PACS, 1)
    publish(PACS, host, monkeypatch, files)
    monkeypatch.setattr(getting, "known_manifest", lambda name: Manifest({}, {}))
    found = get_dataset("PACS", tmp_path / "data")
    assert any("not as in dspreg's list: 28 files too many" in note for note in found.notes)


def test_the_list_of_pacs_has_the_published_numbers():
    known = getting.known_manifest("PACS")
    assert counts_of(PACS, known.files) == PACS.counts
    assert {path.split("/")[1] for path in known.files} == set(PACS.classes)
    assert getting.known_manifest("VLCS") is None


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["pacs"], "Did you mean 'PACS'"),
        (["PACS", "--from", "nowhere.zip"], "nowhere.zip is not there"),
        (["PACS", "--from", "/etc/hostname"], "is not an archive"),
        (["PACS", "--from", "ftp://x/y.zip"], "wanted http:// or https://"),
    ],
)
def test_mistakes(host, tmp_path, capsys, arguments, says):
    code = main(["data", "get", *arguments, "--root", str(tmp_path / "data")])
    assert code in (2, 6)
    assert says in capsys.readouterr().err


def test_the_digits_are_made_on_the_spot(capsys):
    assert main(["data", "get", "digits"]) == 0
    assert capsys.readouterr().out == "digits: made on the spot, nothing to get\n"


def test_a_damaged_manifest_is_no_manifest(host, monkeypatch, tmp_path):
    publish(PACS, host, monkeypatch, original_files(PACS, 1))
    get_dataset("PACS", tmp_path / "data")
    (tmp_path / "data" / "PACS" / NAME).write_text("dspreg manifest 9\n")
    with pytest.raises(DataError, match="not from `dspreg data get`"):
        get_dataset("PACS", tmp_path / "data")
    with pytest.raises(IntegrityError):
        read_manifest(tmp_path / "data" / "PACS" / NAME)
