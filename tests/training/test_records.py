"""Records in DomainBed's layout and in TensorBoard's."""

import json
from types import SimpleNamespace

from dspreg.config.train_config import TrainConfig
from dspreg.training.records import domainbed_lines

SETTINGS = TrainConfig(
    dataset="PACS", augment="domainbed", dropout=0.1, frozen_bn=True, lr=5e-5, weight_decay=0.0, batch_size=32,
    algorithm="CORAL", targets=("sketch", "art"), trial=2, draw=3, holdout=0.2, steps=301, evaluate_every=300,
)  # fmt: skip
EXPERIMENT = SimpleNamespace(
    settings=SETTINGS,
    data=SimpleNamespace(name="PACS", domains=("art", "cartoon", "sketch")),
    splits={"art": (range(160), range(40)), "cartoon": (range(320), range(80)), "sketch": (range(80), range(20))},
)
RECORDS = [
    {
        "step": step,
        "epoch": 1.5,
        "log": {"loss": 0.25, "CORAL.penalty": 2.0},
        "accuracy": {
            "art": {"in": 0.1, "out": 0.2},
            "cartoon": {"in": 0.3, "out": 0.4},
            "sketch": {"in": 0.5, "out": 1},
        },
        "validation": 0.4,
        "seconds": {"step_seconds": 0.125, "evaluate_seconds": 9.0},
    }
    for step in (0, 300)
]


def test_lines_have_the_names_and_numbers_of_domainbed():
    lines = domainbed_lines(EXPERIMENT, RECORDS)
    assert lines.endswith("}\n")
    first, last = map(json.loads, lines.splitlines())
    assert list(last) == sorted(last)
    assert last == {
        "step": 300,
        "epoch": 120.0,  # 300 steps of 32, where the smallest environment, a target, has 80
        "step_time": 0.125,
        "mem_gb": 0,
        "loss": 0.25,
        "CORAL.penalty": 2.0,
        "env0_in_acc": 0.1, "env0_out_acc": 0.2,
        "env1_in_acc": 0.3, "env1_out_acc": 0.4,
        "env2_in_acc": 0.5, "env2_out_acc": 1,
        "hparams": {"data_augmentation": True, "resnet_dropout": 0.1, "freeze_bn": True, "lr": 5e-5,
                    "weight_decay": 0.0, "batch_size": 32},
        "args": {"algorithm": "CORAL", "dataset": "PACS", "task": "domain_generalization", "test_envs": [2, 0],
                 "trial_seed": 2, "hparams_seed": 3, "holdout_fraction": 0.2, "uda_holdout_fraction": 0, "seed": 0,
                 "steps": 301, "checkpoint_freq": 300},
    }  # fmt: skip
    assert (first["step"], first["epoch"]) == (0, 0.0)


def test_no_records_are_no_lines():
    assert domainbed_lines(EXPERIMENT, []) == ""
