"""The five published data sets: what is wanted, and what is said when it isn't there."""

import os
import shutil
import warnings
from pathlib import Path

import pytest
from torchvision.datasets import ImageFolder

from dspreg import DataError, Notice
from dspreg.data import PACS, VLCS, DomainNet, OfficeHome, TerraIncognita, verify

EVERY = (VLCS, PACS, OfficeHome, TerraIncognita, DomainNet)


def copy_of(made, root, each=1, counts=None):
    """A tree as published but for the images, which are few; or as many as `counts`, in the first class."""
    for domain in made.domains:
        for name in made.classes:
            folder = root / made.subfolder / domain / name
            folder.mkdir(parents=True)
            here = (
                each if counts is None or name != made.classes[0] else counts[domain] - each * (len(made.classes) - 1)
            )
            for i in range(here):
                (folder / f"{i}.jpg").touch()
    return root


def quietly(made, root):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        return made(root)


@pytest.mark.parametrize(
    ("made", "name", "images", "classes", "domains"),
    [
        (VLCS, "VLCS", 10_729, 5, "Caltech101 LabelMe SUN09 VOC2007"),
        (PACS, "PACS", 9_991, 7, "art_painting cartoon photo sketch"),
        (OfficeHome, "OfficeHome", 15_588, 65, "Art Clipart Product Real_World"),
        (TerraIncognita, "TerraIncognita", 24_788, 10, "location_100 location_38 location_43 location_46"),
        (DomainNet, "DomainNet", 586_575, 345, "clipart infograph painting quickdraw real sketch"),
    ],
)
def test_as_published(made, name, images, classes, domains):
    assert made.name == name
    assert sum(made.counts.values()) == images
    assert list(made.counts) == list(made.domains) == sorted(made.domains)
    assert [d.replace(" ", "_") for d in made.domains] == domains.split()
    assert len(made.classes) == len(set(made.classes)) == classes
    assert list(made.classes) == sorted(made.classes)  # the order of torchvision's labels
    assert made.steps == 5_001
    assert made.evaluate_every == (1_000 if made is DomainNet else 300)
    assert (made.image_size, made.small) == (224, False)
    for part in ("Input (x):", "Label (y):", "Domain", "Licence:", "Reference:"):
        assert part in made.__doc__
    for domain, count in made.counts.items():
        assert f"{domain}: {count:,}" in made.__doc__


def test_the_second_variant_of_terra_incognita():
    assert sum(TerraIncognita.later.values()) == 24_330


@pytest.mark.parametrize("made", EVERY[:4])
def test_labels_are_torchvisions(made, tmp_path):
    dataset = quietly(made, copy_of(made, tmp_path))
    for domain in made.domains:
        theirs = ImageFolder(tmp_path / made.subfolder / domain)
        assert dataset.domain(domain).labels == theirs.targets
        assert [os.fspath(f) for f in dataset.domain(domain).files] == [path for path, _ in theirs.samples]


@pytest.mark.parametrize("made", EVERY)
def test_a_missing_folder_says_what_to_put_where(made, tmp_path):
    with pytest.raises(DataError) as refused:
        made(tmp_path)
    said = str(refused.value)
    for wanted in (f"{tmp_path / made.subfolder}/", *(f"\n    {domain}/\n" for domain in made.domains)):
        assert wanted in said
    assert str(tmp_path / made.subfolder / made.example) in said
    assert "--root" in said
    domain, name, _ = made.example.split("/")
    assert domain in made.domains
    assert name in made.classes


def test_the_folder_itself_will_do(tmp_path):
    copy_of(PACS, tmp_path)
    assert quietly(PACS, tmp_path).folder == quietly(PACS, tmp_path / "PACS").folder == tmp_path / "PACS"


@pytest.mark.parametrize("other", ["Real_World", "RealWorld", "real world"])
def test_another_spelling_of_real_world_says_what_to_rename(tmp_path, other):
    root = copy_of(OfficeHome, tmp_path)
    (root / "office_home" / "Real World").rename(root / "office_home" / other)
    with pytest.raises(DataError, match=rf"lacks the domain Real World. Rename .*office_home/{other} to 'Real World'"):
        OfficeHome(root)


def test_a_missing_class_is_an_error_that_names_it(tmp_path):
    root = copy_of(PACS, tmp_path)
    shutil.move(root / "PACS" / "photo" / "dog", root / "PACS" / "photo" / "Dog")
    with pytest.raises(DataError, match=r"'photo' of PACS lacks 1 class in .*: dog\. Rename .*photo/Dog to 'dog'\."):
        PACS(root)
    shutil.rmtree(root / "PACS" / "sketch")
    with pytest.raises(DataError, match=r"lacks the domain sketch\. Wanted:\n\n .*PACS/\n"):
        PACS(root)


def test_folders_beside_the_known_ones_become_neither_domains_nor_classes(tmp_path):
    root = copy_of(PACS, tmp_path)
    for stray in ("raw/dog", "sketch/zebra", ".git/x"):
        (root / "PACS" / stray).mkdir(parents=True)
        (root / "PACS" / stray / "1.jpg").touch()
    (root / "PACS" / "photo" / "thumbnail.jpg").touch()
    dataset = quietly(PACS, root)
    assert dataset.domains == PACS.domains
    assert dataset.num_classes == 7
    assert dataset.notices[:3] == (
        "ignored folders that are no domains of PACS: raw",
        "ignored images that lie in 'photo' and in no class: thumbnail.jpg",
        "ignored folders in 'sketch' that are no classes of PACS: zebra",
    )


def test_other_numbers_are_told(tmp_path, monkeypatch):
    monkeypatch.setattr(PACS, "counts", {"art_painting": 20, "cartoon": 30, "photo": 40, "sketch": 50})
    root = copy_of(PACS, tmp_path, each=2, counts=PACS.counts)
    assert PACS(root).mismatches() == quietly(PACS, root).mismatches() == []
    (root / "PACS" / "photo" / "dog" / "0.jpg").unlink()
    for i in range(3):
        (root / "PACS" / "sketch" / "dog" / f"more{i}.jpg").touch()
    with pytest.warns(Notice) as told:
        dataset = PACS(root)
    wanted = (
        "the domain 'photo' has 39 images where 40 are published: 1 missing",
        "the domain 'sketch' has 53 images where 50 are published: 3 too many",
    )
    assert tuple(dataset.mismatches()) == wanted
    assert {f"PACS: {sentence}" for sentence in wanted} <= {str(w.message) for w in told}


@pytest.mark.parametrize(("variant", "said"), [("counts", "24,788 images, as pub"), ("later", "24,330 images, as Dom")])
def test_either_terra_incognita_is_accepted_and_named(tmp_path, monkeypatch, variant, said):
    dataset = quietly(TerraIncognita, copy_of(TerraIncognita, tmp_path))
    assert len(dataset.mismatches()) == 4
    assert dataset.variant() == ""
    monkeypatch.setattr(dataset, "sizes", lambda: getattr(TerraIncognita, variant))
    assert dataset.mismatches() == []
    assert dataset.variant().startswith(said)
    near = dict(getattr(TerraIncognita, variant), location_38=9_700)
    monkeypatch.setattr(dataset, "sizes", lambda: near)
    assert len(dataset.mismatches()) == 1


def test_of_domain_net_only_the_total_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(DomainNet, "classes", ("a", "b"))  # of 345, to make fewer folders
    dataset = quietly(DomainNet, copy_of(DomainNet, tmp_path))
    sizes = dict(DomainNet.counts, clipart=48_130, real=172_946)
    monkeypatch.setattr(dataset, "sizes", lambda: sizes)
    assert dataset.mismatches() == []
    sizes["sketch"] = 70_386
    (said,) = dataset.mismatches()
    assert said.startswith("587,833 images where 586,575 are published: 1,258 too many.")
    assert "clipart 48,130 (48,129)" in said


ROOT = os.environ.get("DSPREG_ROOT", "")


@pytest.mark.skipif(
    not (ROOT and Path(ROOT, "PACS").is_dir()), reason="no PACS: set DSPREG_ROOT to the folder that contains it"
)
def test_the_real_pacs():
    dataset = PACS(ROOT)
    assert dataset.notices == ()
    naive = dict.fromkeys(PACS.domains, 0)
    for domain in PACS.domains:
        for name in PACS.classes:
            naive[domain] += len(os.listdir(f"{ROOT}/PACS/{domain}/{name}"))
    assert dataset.sizes() == naive == PACS.counts
    theirs = ImageFolder(f"{ROOT}/PACS/cartoon")
    assert [os.fspath(f) for f in dataset.domain("cartoon").files] == [path for path, _ in theirs.samples]
    assert dataset.domain("cartoon").labels == theirs.targets
    for name, images in dataset._domains.items():
        dataset._domains[name] = images[::40]
    report = verify(dataset)
    assert report.images > 200
    assert (report.bad, report.missing) == ((), ())
