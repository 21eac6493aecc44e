"""Classes of DomainBed, or of a fork of it, at the bottom of a stack: `domainbed:PATH:Class`."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch

import dspreg
from dspreg.algorithms.registry import StackSpec, parse
from dspreg.cli import main
from dspreg.errors import ConfigError, IntegrityError, Preempted
from dspreg.io.domainbed_code import DomainBedCode
from dspreg.runs.run import Run
from dspreg.specs import parse_stack, without_locations
from dspreg.training import train
from dspreg.training.stored_model import read_model_file
from helpers import tiny
from helpers.killing import train_and_kill
from helpers.tampered import change_model
from helpers.tiny_domainbed import make_domainbed

pytestmark = pytest.mark.filterwarnings("ignore::dspreg.Notice")


@pytest.fixture(scope="session")
def checkout(tmp_path_factory):
    """One for the process: Python can't tell two packages of a name apart."""
    return make_domainbed(tmp_path_factory.mktemp("fork") / "DomainBed")


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return tiny.make_images(tmp_path_factory.mktemp("images") / "woods")


def spec(checkout, name, more=""):
    return f"domainbed:{checkout}:{name}{more}"


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("domainbed:../D:SD", [("DomainBed", {"name": "SD", "path": "../D"})]),
        ("domainbed:/a b/D:SD()", [("DomainBed", {"name": "SD", "path": "/a b/D"})]),
        (
            "domainbed:D:SD(hparams={'a': 1})+SWA(start=3)",
            [("DomainBed", {"name": "SD", "path": "D", "hparams": {"a": 1}}), ("SWA", {"start": 3})],
        ),
        ("DomainBed(name='SD', path='a+b')", [("DomainBed", {"name": "SD", "path": "a+b"})]),
    ],
)
def test_the_spec(text, terms):
    assert [(term.name, dict(term.options)) for term in parse_stack(text)] == terms


def test_a_path_is_no_part_of_an_id():
    runs = [Run(dataset="PACS", targets=("photo",), algorithm=f"domainbed:{path}:SD+SWA") for path in ("a", "b/c")]
    other = Run(dataset="PACS", targets=("photo",), algorithm="domainbed:a:CORAL+SWA")
    assert runs[0].id == runs[1].id != other.id
    assert "b/c" not in str(runs[1])
    assert runs[1].to_json()["algorithm"].count("b/c") == 1  # but it is known where the code is
    assert without_locations("SAM+DSPReg(weight=0.1)") == "SAM+DSPReg(weight=0.1)"


def test_its_erm_is_ours_to_the_bit(checkout, images, tmp_path):
    """The same images, backbone, classifier and Adam: every weight ends where ours does."""
    for name, algorithm in (("theirs", spec(checkout, "ERM")), ("ours", "ERM")):
        train(tiny.settings(images, algorithm=algorithm), tiny.execution(), tmp_path / name)
    theirs, ours = (read_model_file(tmp_path / name / "last.safetensors")[1] for name in ("theirs", "ours"))
    pairs = {"featurizer.": "featurizer.featurizer.network.", "classifier.": "featurizer.classifier."}
    compared = 0
    for name, value in ours.items():
        start = name.split(".")[0] + "."
        assert torch.equal(value, theirs[pairs[start] + name.removeprefix(start)]), name
        compared += 1
    assert compared > 10


@pytest.fixture(scope="module")
def whole(checkout, images, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "run"
    train(tiny.settings(images, algorithm=spec(checkout, "Stateful", "+SWA(start=5)")), tiny.execution(), out)
    return out


@pytest.mark.parametrize("moments", [(12, 4), (31,)])
def test_stopped_anywhere_it_ends_in_the_same_bits(checkout, images, whole, tmp_path, moments):
    how = tiny.settings(images, algorithm=spec(checkout, "Stateful", "+SWA(start=5)"))
    for moment in moments:
        with pytest.raises(Preempted):
            train(how, tiny.execution(), tmp_path / "run", pause=tiny.stop_at(moment))
    train(how, tiny.execution(), tmp_path / "run")
    assert tiny.ending(tmp_path / "run") == tiny.ending(whole)


def test_killed_as_a_process_it_ends_in_the_same_bits(checkout, images, whole, tmp_path):
    how = tiny.settings(images, algorithm=spec(checkout, "Stateful", "+SWA(start=5)"))
    assert train_and_kill(how, tiny.execution(), tmp_path / "run", 2) == 2
    assert tiny.ending(tmp_path / "run") == tiny.ending(whole)


def test_what_a_run_says_of_it(checkout, whole):
    described = json.loads((whole / "run.json").read_text())
    (term, _) = parse_stack(described["settings"]["algorithm"])
    assert "path" not in term.options
    assert term.options["code"] == DomainBedCode(checkout).sha256
    assert term.options["hparams"] == {"batch_size": 4, "lr": 3e-3, "mu": 0.5, "weight_decay": 1e-4}
    assert described["where"]["algorithm"] == "DomainBed(name='Stateful')+SWA(start=5)"


def test_its_registry_is_the_search_space(checkout):
    """For the n-th draw its own random_hparams, with DomainBed's seed of draw and trial."""
    settings = {
        "channels": 3,
        "augment": "domainbed",
        "model": "resnet50",
        "dataset": "PACS",
        "image_size": 224,
        "lr": 1e-4,
        "weight_decay": 0.0,
        "batch_size": 9,
    }
    asked = StackSpec.parse(spec(checkout, "ERM", "(hparams={'weight_decay': 0.25})"))
    drawn, _ = asked.resolve(seed=1234, settings=settings)
    random = np.random.RandomState(1234)
    random.uniform(-5, -3.5)
    hparams = drawn.layers[0].options["hparams"]
    assert hparams == {"batch_size": 9, "lr": 1e-4, "mu": random.uniform(0, 1), "weight_decay": 0.25}
    assert type(hparams["mu"]) is float


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Stateful+DSPReg", "makes its own steps.*DSPReg above it would change .*gradient"),
        ("ERM+CORAL", "CORAL above it would change loss"),
        ("Statefull", "no algorithm 'Statefull'. Did you mean 'Stateful'?"),
        ("Average", "no algorithm 'Average'"),
        ("NoPredict", "NoPredict of DomainBed .* has no predict of its own"),
        ("Broken", "Broken of DomainBed can't be made: ValueError: no such hyper-parameter: mu"),
        ("NeedsCuda", r"NeedsCuda of DomainBed needs CUDA, which is not here: line \d+ .*x.cuda\(\)"),
        ("ERM(hparams={'nu': 1})", "ERM of DomainBed has no hyper-parameter 'nu'.*It has: batch_size, lr, mu"),
    ],
)
def test_refused_before_there_is_a_run(checkout, images, tmp_path, name, message):
    with pytest.raises(ConfigError, match=message):
        train(tiny.settings(images, algorithm=spec(checkout, name)), tiny.execution(), tmp_path / "run")
    assert not (tmp_path / "run" / "run.json").exists()


def test_a_folder_that_is_no_checkout(images, tmp_path):
    with pytest.raises(ConfigError, match=r"is no checkout of DomainBed: it has no domainbed/algorithms\.py"):
        train(tiny.settings(images, algorithm=f"domainbed:{images}:ERM"), tiny.execution(), tmp_path / "run")


def test_two_checkouts_in_one_process(checkout, tmp_path):
    DomainBedCode.open(checkout).module("algorithms")
    other = DomainBedCode.open(make_domainbed(tmp_path / "other"))
    with pytest.raises(ConfigError, match="another DomainBed was imported"):
        other.module("algorithms")


def test_the_sha256_is_that_of_the_code_wherever_it_lies(checkout, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(checkout, copy, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "README.md").write_text("not code")
    assert DomainBedCode(copy).sha256 == DomainBedCode(checkout).sha256
    with (copy / "domainbed" / "lib" / "misc.py").open("a") as file:
        file.write("# changed\n")
    assert DomainBedCode(copy).sha256 != DomainBedCode(checkout).sha256


def test_a_model_file_can_not_name_a_folder(checkout, whole, tmp_path):
    """Whoever wrote it would decide which code runs."""
    shutil.copytree(whole, tmp_path / "run")
    named = f"DomainBed(name='ERM', path={str(checkout)!r})"
    change_model(tmp_path / "run", lambda saved: saved["built"].update(algorithm=named), "last.safetensors")
    with pytest.raises(IntegrityError, match="names code by its path"):
        dspreg.load(tmp_path / "run", "last", trust=(str(checkout),))


LOADS = "import sys, dspreg; dspreg.load(sys.argv[1], 'last', trust=tuple(sys.argv[2:])); print('loaded')"


def test_a_stored_run_imports_nothing_without_the_users_word(images, tmp_path):
    """In processes of their own: here the code was named by the tests."""
    mark = tmp_path / "imported"
    line = f"import pathlib; pathlib.Path({str(mark)!r}).touch()\n"
    checkout = make_domainbed(tmp_path / "DomainBed", line)
    arguments = ["train", "--dataset", f"folder:{images}", "--target", "elm", "--algorithm", spec(checkout, "ERM")]
    arguments += ["--model", "test_resnet", "--weights", "none", "--image-size", "24", "--steps", "2", "--threads", "1"]
    arguments += ["--batch-size", "4", "--out", str(tmp_path / "run"), "--workers", "0"]
    subprocess.run([sys.executable, "-m", "dspreg.cli", *arguments], check=True, capture_output=True)
    assert mark.exists()
    mark.unlink()

    def load(*trust):
        command = [sys.executable, "-c", LOADS, str(tmp_path / "run"), *trust]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    refused = load()
    assert "add --trust FOLDER" in refused.stderr
    assert not mark.exists()
    assert load(str(checkout)).stdout == "loaded\n"
    assert mark.exists()


def test_the_command_line_tells_where_code_is_missing(whole, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("dspreg.io.domainbed_code._named", {})
    assert main(["export", str(whole), "--format", "safetensors", "--out", str(tmp_path / "m.safetensors")]) == 4
    assert "add --trust FOLDER" in capsys.readouterr().err


def test_parse_gives_a_stack_without_importing(tmp_path):
    layer = parse("domainbed:nowhere:ERM")
    assert (layer.name, layer.path) == ("ERM", "nowhere")
    with pytest.raises(ConfigError, match="needs the name of a class"):
        parse("DomainBed(path='x')")
