"""One training looks at its data, its settings and its spec once: counted, with the command line in front."""

from collections import Counter

import pytest

from dspreg import specs
from dspreg.algorithms import registry
from dspreg.cli import main
from dspreg.config import train_config
from dspreg.data import folders
from dspreg.training import experiment, loop, train
from helpers import tiny


@pytest.fixture
def counted(monkeypatch):
    """How often each is called, wherever it is called from."""
    calls = Counter()

    def count(module, name, *others):
        real = getattr(module, name)

        def counting(*given, **options):
            calls[name] += 1
            return real(*given, **options)

        for each in (module, *others):
            monkeypatch.setattr(each, name, counting)

    count(folders.ImageFolders, "read")
    count(experiment, "fingerprint")
    count(specs, "parse_stack", registry)
    count(train_config.TrainConfig, "__post_init__")
    count(train_config.Execution, "__post_init__")
    count(train_config, "default_options")
    count(loop, "prepare_experiment")
    return calls


def test_a_training_prepares_everything_once(tmp_path, counted, monkeypatch, capsys):
    monkeypatch.setenv("DSPREG_CACHE", str(tmp_path / "cache"))
    images = tiny.make_images(tmp_path / "woods")
    options = ["--steps", "3", "--model", "small-cnn", "--image-size", "8", "--batch-size", "4", "--threads", "1"]
    command = ["train", "--dataset", f"folder:{images}", "--target", "elm", "--algorithm", "CORAL+DSPReg", *options]
    assert main([*command, "--workers", "0", "--out", str(tmp_path / "run")]) == 0, capsys.readouterr().err
    found = dict(counted)
    # what is given, what is resolved, by the command and by the training, the method's options in it; and how: as
    # given, then with the device, the cache, batch norm folded or not, and the memory layout
    assert found.pop("__post_init__") == 9
    assert found.pop("default_options") == 2  # a look into a table, for the command's checks and for the training
    assert found.pop("fingerprint") == 4  # one of each domain
    assert found == {"read": 1, "parse_stack": 1, "prepare_experiment": 1}


def test_a_configuration_is_as_good_as_a_mapping(tmp_path):
    images = tiny.make_images(tmp_path / "woods")
    given = tiny.settings(images, steps=1)
    one, other = (
        train(settings, tiny.execution(), tmp_path / name)
        for name, settings in (("mapping", given), ("config", train_config.TrainConfig(**given)))
    )
    assert one["run"] == other["run"]
    same = [(tmp_path / name / "last.safetensors").read_bytes() for name in ("mapping", "config")]
    assert same[0] == same[1]
