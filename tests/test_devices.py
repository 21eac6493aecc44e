"""Which device `auto` is: cuda, then mps, then the CPU, by what torch says is there."""

import json
from dataclasses import replace

import pytest
import torch

import dspreg
from dspreg.algorithms.registry import StackSpec
from dspreg.cli import main
from dspreg.config.measure_config import MeasureConfig
from dspreg.config.train_config import Execution
from dspreg.devices import resolve_device
from dspreg.errors import ConfigError, Preempted
from dspreg.launch.pool import PoolLauncher
from dspreg.launch.resources import assign_slots, default_jobs
from dspreg.launch.serial import SerialLauncher
from dspreg.runs.folder import RunFolder
from dspreg.runs.run import Run
from dspreg.training.execution import environment, measures_c, resolve_execution
from dspreg.training.loop import train
from helpers import tiny

TRAIN = ["train", "--dataset", "digits", "--target", "print", "--algorithm", "ERM", "--steps", "2", "--threads", "1"]


@pytest.fixture
def there(monkeypatch):
    """Pretend that torch finds these devices beside the CPU."""

    def pretend(*kinds, gpus=1):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: "cuda" in kinds)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus if "cuda" in kinds else 0)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: "mps" in kinds)

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return pretend


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [((), "cpu"), (("mps",), "mps"), (("cuda",), "cuda"), (("cuda", "mps"), "cuda")],
)
def test_auto_is_the_first_that_is_there(there, kinds, expected):
    there(*kinds)
    assert resolve_device("auto") == expected
    assert resolve_device("cpu") == "cpu"  # what is asked for is what is used


def test_a_device_that_is_not_there_is_refused(there):
    there()
    for name in ("cuda", "cuda:0", "mps", "meta", "xpu"):
        with pytest.raises(ConfigError, match=f"device='{name}' is not there: torch .* finds none"):
            resolve_device(name)
    with pytest.raises(ConfigError, match="device='gpu'; wanted auto, cpu, cuda, cuda:1 or mps"):
        resolve_device("gpu")
    there("cuda", gpus=2)
    assert resolve_device("cuda:1") == "cuda:1"
    with pytest.raises(ConfigError, match="'cuda:2' is not there: torch finds 2, counted from 0"):
        resolve_device("cuda:2")


def test_where_c_is_measured_a_device_without_double_precision_is_left_out(there):
    there("mps")
    assert resolve_device("auto", float64=True) == "cpu"
    with pytest.raises(ConfigError, match="device='mps': c is measured in double precision, which it lacks"):
        resolve_device("mps", float64=True)
    there("cuda", "mps")
    assert resolve_device("auto", float64=True) == resolve_device("cuda", float64=True) == "cuda"
    there("mps")
    measured = {"ERM": False, "DSPReg": True, "CORAL+DSPReg": True, "DSPReg(coefficients='ones')": False,
                "DSPReg(weight=0)": False, "Anchor": True, "Anchor(by='ones')": False,
                "EWC": True, "L2SP": False, "FisherTune": True}  # fmt: skip
    for spec, needed in measured.items():
        assert measures_c(StackSpec.parse(spec), Execution()) is needed
        assert resolve_execution(Execution(), "ERM", spec).device == ("cpu" if needed else "mps")
    assert measures_c(StackSpec.parse("ERM"), Execution(profile="always"))
    assert resolve_execution(Execution(device="mps"), "ERM").device == "mps"
    with pytest.raises(ConfigError, match="'mps': c is measured"):  # before any run uses up an attempt on it
        dspreg.sweep(
            [Run(dataset="digits", targets=("print",), algorithm="DSPReg")], "new", execution=Execution(device="mps")
        )


def test_auto_is_the_default_everywhere():
    assert Execution().device == MeasureConfig().device == "auto"
    for function in (dspreg.evaluate, dspreg.predict):
        assert function.__kwdefaults__["device"] == "auto"


def test_one_run_per_gpu_and_one_on_an_accelerator_without_numbers(there):
    there("cuda", gpus=3)
    execution = PoolLauncher().setup(Execution())
    assert (execution.device, default_jobs(execution)) == ("cuda", 3)
    assert [slot.gpu for slot in assign_slots(4, execution)] == ["0", "1", "2", "0"]
    there("mps")
    execution = PoolLauncher().setup(Execution())
    assert (execution.device, default_jobs(execution)) == ("mps", 1)
    assert default_jobs(replace(execution, device="cuda:1")) == 1
    there()
    assert PoolLauncher().setup(Execution()).device == SerialLauncher().setup(Execution()).device == "cpu"


def test_the_record_has_the_device_and_not_the_word(tmp_path):
    images = tiny.make_images(tmp_path / "images")
    small = tiny.settings(images, algorithm="ERM", steps=2)
    train(small, tiny.execution(device="auto"), tmp_path / "auto")
    train(small, tiny.execution(device="cpu"), tmp_path / "cpu")
    one, other = (RunFolder(tmp_path / name).description() for name in ("auto", "cpu"))
    assert one == other
    assert (one["environment"]["device"], one["where"]["device"]) == ("cpu", "cpu")
    assert tiny.ending(tmp_path / "auto") == tiny.ending(tmp_path / "cpu")


def test_a_run_goes_on_where_auto_is_its_device_and_nowhere_else(tmp_path, monkeypatch):
    """Started with --device cpu, as all runs of earlier versions were."""
    images = tiny.make_images(tmp_path / "images")
    small = tiny.settings(images, algorithm="ERM", steps=6)
    with pytest.raises(Preempted):
        train(small, tiny.execution(device="cpu"), tmp_path / "run", pause=tiny.stop_at(12))
    monkeypatch.setattr("dspreg.training.experiment.environment", lambda e: environment(e) | {"device": "cuda"})
    with pytest.raises(ConfigError, match=r"environment.device: 'cpu' → 'cuda'\n.*--device cpu\)"):
        train(small, tiny.execution(device="auto"), tmp_path / "run")
    monkeypatch.undo()
    train(small, tiny.execution(device="auto"), tmp_path / "run")
    train(small, tiny.execution(device="cpu"), tmp_path / "whole")
    assert tiny.ending(tmp_path / "run") == tiny.ending(tmp_path / "whole")


def test_the_first_line_says_which(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    commands = [
        [*TRAIN, "--out", "run"],
        ["evaluate", "run", "--domain", "print", "--json"],
        ["measure", "--model", "run", "--images", "8", "--no-null", "--json"],
        ["sweep", "--dataset", "digits", "--algorithms", "ERM", "--targets", "print", "--trials", "1", "--draws", "1",
         "--only", "training", "--set", "steps=2", "--store", "store", "--jobs", "0"],
    ]  # fmt: skip
    for arguments in commands:
        assert main(arguments) == 0
        said = capsys.readouterr()
        assert said.err.splitlines()[0] == "device: cpu"
        if "--json" in arguments:
            json.loads(said.out)  # nothing else is there


def test_printed_options_keep_the_word(capsys):
    """A file of options is for other machines, too."""
    assert main([*TRAIN, "--print-config"]) == 0
    assert "device: auto" in capsys.readouterr().out
