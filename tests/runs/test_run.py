import hashlib
import json
import subprocess
import sys

import pytest
from PIL import Image

from dspreg.config.train_config import Execution
from dspreg.data.folders import Folder
from dspreg.errors import ConfigError
from dspreg.runs.run import Run
from dspreg.specs import shortest_spec


def run(**changes):
    return Run(**{"dataset": "PACS", "targets": ("sketch",), "algorithm": "ERM", **changes})


def test_plan_ids_are_what_they_were():
    """Literal: a store made today is read next year."""
    assert run().id == "c4fcfdcdbced8fea"
    full = run(algorithm="CORAL(weight=0.5)+DSPReg", protocol="swad", trial=2, draw=7, options={"steps": 300, "lr": 1})
    assert full.id == "e480fc00943dd1c5"
    assert run(dataset="folder:photos", options={"weights": "w.safetensors"}).id == "4567afad49a0b88a"


def test_a_plan_id_is_the_hash_of_what_it_says():
    text = (
        '{"algorithm":"ERM","dataset":"PACS","draw":0,"options":{"lr":1.0},"protocol":"domainbed",'
        '"targets":["photo","sketch"],"trial":0}'
    )
    found = run(targets=("sketch", "photo"), options={"lr": 1})
    assert found.id == hashlib.sha256(text.encode()).hexdigest()[:16]


CHANGES = [
    {"dataset": "VLCS"},
    {"dataset": "folder:PACS"},
    {"dataset": "index:PACS.csv"},
    {"targets": ("photo",)},
    {"targets": ("photo", "sketch")},
    {"algorithm": "DSPReg"},
    {"algorithm": "DSPReg(weight=0.001)"},
    {"protocol": "swad"},
    {"trial": 1},
    {"draw": 1},
    {"options": {"steps": 300}},
    {"options": {"steps": 301}},
    {"options": {"weights": "none"}},
    {"options": {"weights": "default"}},
    {"options": {"weights": "mine.safetensors"}},
    {"options": {"same_draws": True}},
]


def test_every_change_is_another_run():
    found = [run(), *(run(**change) for change in CHANGES)]
    assert len({each.id for each in found}) == len(set(found)) == len(CHANGES) + 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"dataset": "folder:/mnt/a/photos"}, {"dataset": "folder:b/photos/"}),
        ({"dataset": "folder:/mnt/a/photos"}, {"dataset": "folder:elsewhere", "name": "photos"}),
        ({"dataset": "index:/mnt/a/list.csv"}, {"dataset": "index:list.csv"}),
        ({"options": {"weights": "/mnt/w.safetensors"}}, {"options": {"weights": "renamed.safetensors"}}),
        ({"targets": ("a", "b")}, {"targets": ("b", "a")}),
        ({"algorithm": "ERM+ CORAL( weight = 5e-1 )"}, {"algorithm": "CORAL(weight=0.5)"}),
        ({"algorithm": "MLDG(n_meta_test=1, beta=2.0)"}, {"algorithm": "MLDG(beta=2.0, n_meta_test=1)"}),
        ({"options": {"lr": 1}}, {"options": {"lr": 1.0}}),
        ({"options": {"steps": 3, "lr": 0.1}}, {"options": {"lr": 0.1, "steps": 3}}),
        ({"options": {"evaluate": "needed", "same_draws": False}}, {}),
    ],
)
def test_the_same_run_written_or_placed_otherwise(one, other):
    assert run(**one).id == run(**other).id
    assert run(**one) == run(**other)


def test_a_link_counts_by_its_own_name(tmp_path):
    """The data set and the run call it the same, or their randomness would differ."""

    for domain in ("a", "b"):
        (tmp_path / "disk7" / domain / "cat").mkdir(parents=True)
        for name in ("1.png", "2.png"):
            Image.new("RGB", (4, 4)).save(tmp_path / "disk7" / domain / "cat" / name)
    (tmp_path / "photos").symlink_to(tmp_path / "disk7")
    assert run(dataset=f"folder:{tmp_path}/photos").data_name == "photos" == Folder(tmp_path / "photos").name


@pytest.mark.parametrize(
    ("spec", "short"),
    [
        ("DSPReg()", "DSPReg"),
        ("ERM", "ERM"),
        ("ERM+DSPReg", "DSPReg"),
        ("SAM+DSPReg", "SAM+DSPReg"),
        ("DSPReg+SAM", "DSPReg+SAM"),
        ("my.own.Method(a=[1,2], b='x')+DSPReg(weight=1e-3)", "my.own.Method(a=[1, 2], b='x')+DSPReg(weight=0.001)"),
        ('DSPReg(engine="lazy(30)", weight=-0.)', "DSPReg(engine='lazy(30)', weight=-0.0)"),
    ],
)
def test_shortest(spec, short):
    assert shortest_spec(spec) == short
    assert shortest_spec(short) == short


@pytest.mark.parametrize("spec", ["", "DSPReg(", "DSPReg(0.1)", "A-B", "A(b=c)", "A(b=open('x'))", "3", "A\0"])
def test_what_is_no_spec(spec):
    with pytest.raises(ConfigError, match="not of the form"):
        shortest_spec(spec)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"targets": "sketch"}, "wanted a tuple of names"),
        ({"protocol": "domainbet"}, "wanted one of domainbed"),
        ({"trial": -1}, "at least 0"),
        ({"options": {"stepz": 3}}, "Did you mean 'steps'"),
        ({"options": {"trial": 3}}, "it is a field of Run"),
        ({"options": {"device": "cpu"}}, "unknown option 'device'"),
        ({"options": {"steps": 0}}, "at least 1"),
        ({"name": "mine"}, "has its own"),
    ],
)
def test_what_is_no_run(changes, message):
    with pytest.raises(ConfigError, match=message):
        run(**changes)


def test_json_both_ways():
    there = run(dataset="folder:/mnt/x", name="photos", trial=2, options={"steps": 3, "weights": "w.safetensors"})
    back = Run.from_json(json.loads(json.dumps(there.to_json())))
    assert back == there
    assert back.settings() == there.settings()
    assert back.name == "photos"
    assert Run.from_json(json.loads(json.dumps(run().to_json()))).id == run().id


def test_what_training_takes():
    placed = run(dataset="folder:/mnt/x/photos", draw=2, options={"steps": 3})
    assert placed.settings() == {
        "dataset": "folder:/mnt/x/photos", "targets": ("sketch",), "algorithm": "ERM", "protocol": "domainbed",
        "trial": 0, "draw": 2, "steps": 3,
    }  # fmt: skip
    assert placed.execution(Execution(threads=1)) == Execution(threads=1, name="photos")
    assert run().execution(Execution(threads=1, name="photos")) == Execution(threads=1)


def test_ids_need_no_torch():
    program = (
        "import sys; from dspreg.runs.run import Run\n"
        "import dspreg.protocol.leave_one_out, dspreg.protocol.sweep_file\n"
        "print(Run(dataset='PACS', targets=('sketch',), algorithm='ERM').id, 'torch' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout.split() == [run().id, "False"]
