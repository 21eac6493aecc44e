from collections import Counter
from itertools import combinations

import pytest

from dspreg.config.defaults import search_seed
from dspreg.config.train_config import TrainConfig, resolve_config
from dspreg.data.registry import BENCHMARKS
from dspreg.domainbed.jobs import job_arguments, job_id
from dspreg.domainbed.seeds import seed_hash
from dspreg.errors import ConfigError
from dspreg.protocol.leave_one_out import count_runs, distinct, leave_one_out, target_sets
from dspreg.runs.run import Run

TWO = {"PACS": ("art_painting", "cartoon", "photo", "sketch"), "VLCS": ("Caltech101", "LabelMe", "SUN09", "VOC2007")}


def test_sets_of_targets_literally():
    assert list(target_sets("abc")) == [("a",), ("a", "b"), ("a", "c"), ("b",), ("b", "c"), ("c",)]
    assert list(target_sets("abc", pairs=False)) == [("a",), ("b",), ("c",)]


def test_the_order_is_trials_data_sets_algorithms_targets_draws():
    found = list(leave_one_out(TWO, ["ERM", "CORAL"], trials=2, draws=2))
    expected = [
        (trial, data, algorithm, tuple(TWO[data][n] for n in held_out), draw)
        for trial in (0, 1)
        for data in ("PACS", "VLCS")
        for algorithm in ("ERM", "CORAL")
        for held_out in ([0], [0, 1], [0, 2], [0, 3], [1], [1, 2], [1, 3], [2], [2, 3], [3])
        for draw in (0, 1)
    ]
    assert [(r.trial, r.dataset, r.algorithm, r.targets, r.draw) for r in found] == expected


@pytest.mark.parametrize(("name", "all_of_them", "single"), [("PACS", 600, 240), ("DomainNet", 1260, 360)])
def test_numbers_of_runs_are_domainbeds(name, all_of_them, single):
    domains = {name: BENCHMARKS[name].domains}
    found = list(leave_one_out(domains, ["ERM"]))
    assert len(found) == len(set(found)) == all_of_them
    assert [r for r in found if len(r.targets) == 1] == list(leave_one_out(domains, ["ERM"], only="training"))
    assert len(list(leave_one_out(domains, ["ERM"], only="training"))) == single


def test_named_targets_keep_the_pairs_that_select_for_them():
    found = leave_one_out({"PACS": TWO["PACS"]}, ["ERM"], trials=1, draws=1, targets=["photo"])
    everything = [c for n in (1, 2) for c in combinations(TWO["PACS"], n)]
    assert Counter(r.targets for r in found) == Counter(c for c in everything if "photo" in c)


def test_the_same_draw_in_all_trials():
    runs = list(leave_one_out({"PACS": TWO["PACS"]}, ["ERM"], draws=2, same_draws=True, only="training"))
    lr = {(r.trial, r.draw): resolve_config(TrainConfig.of(r.settings()), BENCHMARKS["PACS"]).lr for r in runs}
    assert lr[0, 1] == lr[1, 1] == lr[2, 1] == pytest.approx(2.7028930742148706e-05, rel=0)  # DomainBed's, draw 1
    anew = list(leave_one_out({"PACS": TWO["PACS"]}, ["ERM"], draws=2, only="training"))
    lr = {(r.trial, r.draw): resolve_config(TrainConfig.of(r.settings()), BENCHMARKS["PACS"]).lr for r in anew}
    assert lr[1, 1] == pytest.approx(2.2352558725944602e-05, rel=0)
    assert lr[0, 0] == lr[1, 0] == 5e-5
    assert not set(runs) & set(anew)


def test_the_methods_options_are_drawn_with_the_same_seed():
    from dspreg.algorithms.registry import StackSpec
    from dspreg.training.experiment import resolve_stack

    def drawn(**given):
        config = resolve_config(TrainConfig(dataset="PACS", draw=1, **given), BENCHMARKS["PACS"])
        return str(resolve_stack(StackSpec.parse("CORAL"), config)[0])

    assert drawn(trial=2, same_draws=True) == drawn(trial=0) != drawn(trial=2)
    assert search_seed(1, 2, True) == seed_hash(1, 0)


def test_options_and_name_are_those_of_all_runs():
    domains = {"folder:x/photos": ("a", "b"), "PACS": TWO["PACS"]}
    options = {"protocol": "swad", "steps": 3}
    runs = list(leave_one_out(domains, ["ERM"], trials=1, draws=1, only="training", options=options, name="mine"))
    assert {(r.protocol, r.options["steps"]) for r in runs} == {("swad", 3)}
    assert {r.data_name for r in runs} == {"mine", "PACS"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"only": "training_domains"}, "wanted 'training'"),
        ({"trials": 0}, "at least 1"),
        ({"draws": 0}, "at least 1"),
        ({"targets": ["skech"]}, "Did you mean 'sketch'"),
        ({"datasets": TWO, "targets": ["sketch"]}, "none of the targets sketch is a domain of VLCS"),
        ({"datasets": {"two": ("a", "b")}}, "Add only: training"),
        ({"datasets": {"one": ("a",)}, "only": "training"}, "leaves none to train on"),
    ],
)
def test_what_is_no_sweep(changes, message):
    given = {"datasets": {"PACS": TWO["PACS"]}, "algorithms": ["ERM"], **changes}
    with pytest.raises(ConfigError, match=message):
        list(leave_one_out(**given))


def test_each_run_once():
    one = Run(dataset="folder:a/x", targets=("t", "u"), algorithm="ERM")
    assert distinct([one, Run(dataset="folder:a/x", targets=("u", "t"), algorithm="ERM()"), one]) == [one]
    with pytest.raises(ConfigError, match="can't be told from each other"):
        distinct([one, Run(dataset="folder:b/x", targets=("t", "u"), algorithm="ERM")])


def test_jobs_are_named_as_domainbed_names_them():
    """Both literals are from its own program."""
    runs = leave_one_out({"VLCS": TWO["VLCS"]}, ["ERM"], trials=2, draws=2)
    found = {(r.targets, r.trial, r.draw): job_arguments(r, TWO["VLCS"], "/data") for r in runs}
    one = found[("LabelMe", "SUN09"), 0, 1]
    assert one["test_envs"] == [1, 2]
    assert one["seed"] == 360234358
    assert job_id(one) == "e5f05bd2ef71873d53747c5d1a3d39ab"
    assert "steps" not in one
    given = Run(dataset="VLCS", targets=("SUN09", "LabelMe"), algorithm="ERM", options={"steps": 3, "holdout": 0.3})
    made = job_arguments(given, TWO["VLCS"])
    assert (made["steps"], made["holdout_fraction"], made["test_envs"], made["data_dir"]) == (3, 0.3, [1, 2], "")


@pytest.mark.parametrize("only", [None, "training"])
@pytest.mark.parametrize("targets", [None, ["a"], ["a", "c"], ["c", "a", "b"], ["z", "a"]])
@pytest.mark.parametrize("algorithms", [["ERM"], ["ERM", "CORAL", "ERM()", "ERM+CORAL"]])
def test_runs_are_counted_as_they_are_made(only, targets, algorithms):
    datasets = {"first": ("a", "b", "c"), "second": ("a", "x", "y", "z")}
    how = {"trials": 2, "draws": 3, "only": only, "targets": targets}
    made = Counter((run.dataset, run.algorithm) for run in distinct(leave_one_out(datasets, algorithms, **how)))
    assert count_runs(datasets, algorithms, **how) == made


def test_any_number_is_counted_at_once():
    many = {f"data {n}": tuple(map(str, range(10_000))) for n in range(3)}
    counts = count_runs(many, ["ERM"], trials=1_000_000, draws=1_000_000)
    assert set(counts.values()) == {10**12 * (10_000 + 10_000 * 9_999 // 2)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trials": 0}, "trials=0; wanted"),
        ({"draws": 10**400}, "draws=1000.*401 characters.*at most 1,000,000: each is a training"),
        ({"trials": True}, "trials=True; wanted a whole number"),
        ({"targets": ["q"]}, "target 'q' is a domain of none"),
        ({"only": "some"}, "only='some'"),
    ],
)
def test_what_is_not_made_is_not_counted(changes, message):
    for call in (lambda **how: list(leave_one_out({"d": ("a", "b", "c")}, ["ERM"], **how)),
                 lambda **how: count_runs({"d": ("a", "b", "c")}, ["ERM"], **how)):  # fmt: skip
        with pytest.raises(ConfigError, match=message):
            call(**changes)
