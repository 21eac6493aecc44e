"""Text for people: names that would do something where they are shown, and what a mistyped one was meant to be."""

import io
import re
from contextlib import redirect_stdout

import pytest

from dspreg.config.train_config import OPTIONS
from dspreg.io.text import SYNONYMS, did_you_mean, escape_csv, escape_terminal, nearest, shorten


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("photo 1.jpg", "photo 1.jpg"),
        ("Größe 漢字 🦉.png", "Größe 漢字 🦉.png"),
        ("Bild\u202f12\u00a0Uhr.png", "Bild\u202f12\u00a0Uhr.png"),  # spaces that macOS puts into names
        ("👩\u200d🚀.png", "👩\u200d🚀.png"),
        ("a\x1b[31mred", "a\\x1b[31mred"),
        ("two\nlines\r\t", "two\\nlines\\r\\t"),
        ("\x9b2J", "\\x9b2J"),
        ("invoice\u202egpj.exe", "invoice\\u202egpj.exe"),
        ("half \udc80", "half \\udc80"),
        ("line\u2028end", "line\\u2028end"),
    ],
)
def test_what_a_terminal_would_obey_is_escaped(name, seen):
    assert escape_terminal(name) == seen
    assert escape_terminal(name).encode()  # no half characters


@pytest.mark.parametrize("name", ["=cmd()", "+1", "-1", "@sum", "\tx", "\rx"])
def test_no_cell_begins_a_formula(name):
    assert escape_csv(name) == "'" + escape_terminal(name)


def test_other_cells_are_left_alone():
    assert [escape_csv(name) for name in ("cat", "", "a=b", "'x", "5")] == ["cat", "", "a=b", "'x", "5"]


# What a name was meant to be. Each row: what was typed, where, and what is suggested; None: nothing is.

TRAIN = (
    "--out",
    "--config",
    "--set",
    *(f"--{name.replace('_', '-')}" for name in OPTIONS if name != "targets"),
    "--target",
)
DSP_REG = ("weight", "refresh_epochs", "refresh_steps", "measure_batches", "draws", "engine", "estimator", "warmup")
MEANT = [
    ("--learning-rate", TRAIN, "--lr"),
    ("--learning_rate", TRAIN, "--lr"),
    ("--LR", TRAIN, "--lr"),
    ("--epochs", TRAIN, "--steps"),
    ("--max-steps", TRAIN, "--steps"),
    ("--iterations", TRAIN, "--steps"),
    ("--bs", TRAIN, "--batch-size"),
    ("--batch", TRAIN, "--batch-size"),
    ("--batchsize", TRAIN, "--batch-size"),
    ("--wd", TRAIN, "--weight-decay"),
    ("--env", TRAIN, "--target"),
    ("--test_env", TRAIN, "--target"),
    ("--test_envs", TRAIN, "--target"),
    ("--test-domain", TRAIN, "--target"),
    ("--seed", TRAIN, "--trial"),
    ("--trial_seed", TRAIN, "--trial"),
    ("--hparams_seed", TRAIN, "--draw"),
    ("--output_dir", TRAIN, "--out"),
    ("--output", TRAIN, "--out"),
    ("--data_dir", TRAIN, "--root"),
    ("--gpu", TRAIN, "--device"),
    ("--cuda", TRAIN, "--device"),
    ("--arch", TRAIN, "--model"),
    ("--backbone", TRAIN, "--model"),
    ("--num-workers", TRAIN, "--workers"),
    ("--method", TRAIN, "--algorithm"),
    ("--checkpoint_freq", TRAIN, "--evaluate-every"),
    ("--holdout_fraction", TRAIN, "--holdout"),
    ("--img-size", TRAIN, "--image-size"),
    ("--pretrained", TRAIN, "--weights"),
    ("--resnet_dropout", TRAIN, "--dropout"),
    ("--output_dir", ("--store", "--trials", "--draws"), "--store"),
    ("--n_hparams", ("--store", "--trials", "--draws"), "--draws"),
    ("--n_trials", ("--store", "--trials", "--draws"), "--trials"),
    ("--batch-size", ("--batch", "--seed"), "--batch"),
    ("--evalute", TRAIN, "--evaluate"),
    ("--tragets", TRAIN, "--target"),
    ("--thread", TRAIN, "--threads"),
    ("lamda", DSP_REG, "weight"),
    ("lambda", DSP_REG, "weight"),
    ("reg", DSP_REG, "weight"),
    ("wieght", DSP_REG, "weight"),
    ("lamda", tuple(OPTIONS), None),  # of a method, not of a training: better no hint than same_draws
    ("--frobnicate", TRAIN, None),
    ("--momentum", TRAIN, None),
    ("--verbose", TRAIN, None),
    ("x", tuple(OPTIONS), None),
    ("", tuple(OPTIONS), None),
]  # fmt: skip


@pytest.mark.parametrize(("typed", "known", "meant"), MEANT, ids=lambda each: each if isinstance(each, str) else "")
def test_what_was_meant(typed, known, meant):
    assert nearest(typed, known) == meant


def test_every_synonym_leads_to_one_of_our_names():
    """A synonym of a name that is gone would never be shown."""
    from dspreg.cli import main

    with pytest.raises(SystemExit), redirect_stdout(io.StringIO()) as help:
        main(["train", "--help"])
    flags = set(re.findall(r"--([a-z-]+)", help.getvalue()))
    others = {"weight", "store", "targets", "trials", "draws", "batch", "algorithms", "selection"}
    assert {name.replace("_", "-") for name in SYNONYMS} <= flags | others


def test_letters_that_only_look_alike_are_named():
    assert did_you_mean("CORАL", ["CORAL", "ERM"]) == " Did you mean 'CORAL'? 'А' is CYRILLIC CAPITAL LETTER A."
    assert did_you_mean("CORL", ["CORAL", "ERM"]) == " Did you mean 'CORAL'?"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("short", "'short'"),
        ("x" * 500, f"'{'x' * 59}… (500 characters)"),
        (["a", 1], "['a', 1]"),
        (10**5000, "a number of more than 4,300 digits"),
        (None, "None"),
    ],
    ids=["short", "long", "list", "number", "none"],
)
def test_what_came_is_shown_in_short(value, shown):
    assert shorten(value) == shown
