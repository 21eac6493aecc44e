"""Tables against literal ones, and what is in no table: averages over what happened to finish or was run otherwise."""

import random

import pytest

from dspreg.errors import ConfigError
from dspreg.reporting.formats import FORMATS
from dspreg.reporting.table import Cell, mean_and_error
from dspreg.reporting.tables import make_tables, select_rows
from dspreg.runs.status import RunState, RunStatus
from helpers.runs import DOMAINS, random_traces, single, trace

PACS = ("art_painting", "cartoon", "photo", "sketch")


def sweep(accuracy, algorithm="ERM", domains=DOMAINS, **changes):
    """(target, trial) → accuracy, as finished runs of one record."""
    return [
        trace(single(0, target, value, 0.5, domains), targets=(target,), trial=trial, algorithm=algorithm,
              domains=domains, **changes)
        for (target, trial), value in accuracy.items()
    ]  # fmt: skip


COMPLETE = sweep({(d, i): 0.5 + 0.1 * i + 0.1 * j for j, d in enumerate(DOMAINS) for i in (0, 1, 2)})


def made(traces, selection="training", damaged=()):
    return make_tables(select_rows(traces, selection), damaged)


def cells(table, label="ERM", source="ours"):
    (row,) = [r for r in table.rows if (r.label, r.source) == (label, source)]
    return dict(zip(table.columns, row.cells, strict=True))


def test_the_error_is_the_population_one():
    mean, error = mean_and_error([0.1, 0.2, 0.3])
    assert f"{mean:.1f} +/- {error:.1f}" == "20.0 +/- 4.7"  # as DomainBed's own test has it


def test_a_complete_sweep_as_text():
    assert FORMATS["text"](made(COMPLETE)) == (
        "trees: accuracy on each domain held out, in %; training-domain validation\n"
        "\n"
        "            ash       birch       cedar  mean     worst  runs\n"
        "ERM  60.0 ± 4.7  70.0 ± 4.7  80.0 ± 4.7  70.0  60.0 ash   9/9\n"
        "\n"
        "±: standard error over trials as in DomainBed, population standard deviation / √k\n"
        "runs: finished of those that are there or planned\n"
        "\n"
        "Averages over the domains of each data set, in %; training-domain validation\n"
        "\n"
        "          trees  mean\n"
        "ERM  70.0 ± 4.7  70.0\n"
        "\n"
        "±: standard error over trials as in DomainBed, population standard deviation / √k\n"
    )


def test_means_are_of_unrounded_numbers():
    found = cells(made(sweep({("ash", 0): 0.12345, ("birch", 0): 0.2, ("cedar", 0): 0.3}))[0])
    assert found["mean"].value == pytest.approx((12.345 + 20 + 30) / 3, abs=1e-12)


def test_a_missing_trial_shows_and_is_in_no_mean_over_domains():
    some = [run for run in COMPLETE if (run.targets, run.trial) != (("birch",), 2)]
    table, averages = made(some)
    found = cells(table)
    assert found["birch"].format() == "65.0 ± 3.5 (2/3)"
    assert (found["birch"].found, found["birch"].expected) == (2, 3)
    assert found["mean"].format() == "68.3 (2/3)"  # of 60, 65 and 80: it says that a trial is missing somewhere
    assert found["worst"].format() == "60.0 (2/3) ash"
    assert cells(averages)["trees"].format() == "65.0 ± 3.5 (2/3)"  # trials 0 and 1: 60 and 70
    assert found["runs"].text == "8/8"  # what is there; a plan would say nine


def test_a_missing_domain_leaves_no_mean_and_says_why():
    table, averages = made([run for run in COMPLETE if run.targets != ("cedar",)])
    found = cells(table)
    assert found["cedar"] == Cell(found=0, expected=3, reason="not started")
    assert found["mean"].value is None
    assert found["mean"].reason
    assert found["worst"].value is None  # the missing one might be worse
    assert cells(averages)["trees"].reason == "no number for cedar"
    averages = made([run for run in COMPLETE if (run.targets[0], run.trial) in (("ash", 0), ("birch", 1))])[1]
    assert (
        cells(averages)["trees"].reason == "no number for birch, cedar in trial 0; no number for ash, cedar in trial 1"
    )
    text = FORMATS["text"]([table])
    assert "– [1]" in text
    assert "\n[1] not started\n" in text


@pytest.mark.parametrize(
    ("state", "why"),
    [
        (RunState(RunStatus.FAILED, "step 3: the loss is not finite"), "failed: step 3: the loss is not finite"),
        (RunState(RunStatus.STOPPED, step=100, steps=301), "stopped at step 100 of 301"),
        (RunState(RunStatus.RUNNING, step=7), "running at step 7 (held by a sweeper)"),
    ],
)
def test_a_run_that_is_not_finished_gives_its_cell_a_reason(state, why):
    lost = trace(single(0, "cedar", 1.0, 1.0), targets=("cedar",), state=state)
    table = made([*sweep({("ash", 0): 0.5, ("birch", 0): 0.5}), lost])[0]
    assert cells(table)["cedar"].reason == why
    assert cells(table)["runs"].text == "2/3"
    assert why in FORMATS["text"]([table])


def test_a_cell_of_nan_alone():
    nan = trace(single(0, "cedar", 1.0, float("nan")), targets=("cedar",))
    assert cells(made([nan])[0])["cedar"].reason == "all NaN"


def test_leave_one_out_without_pairs_says_so_and_counts_pairs_as_runs():
    table = made(COMPLETE, "leave-one-out")[0]
    assert cells(table)["ash"].reason == "no finished pair runs of ash with birch, cedar"
    assert cells(made(random_traces(0), "leave-one-out")[0])["runs"].text == "36/36"
    assert cells(made(random_traces(0), "training")[0])["runs"].text == "18/18"


def test_a_plan_says_what_is_missing():
    waiting = {"conditions": {}, "state": RunState(RunStatus.NOT_STARTED), "id": ""}
    plan = [trace(targets=(d,), trial=i, **waiting) for d in DOMAINS for i in (0, 1, 2, 3)]
    found = cells(made([*COMPLETE, *plan])[0])
    assert found["ash"].format() == "60.0 ± 4.7 (3/4)"
    assert found["runs"].text == "9/12"
    only = cells(made(plan)[0])
    assert (only["ash"].reason, only["runs"].text) == ("not started", "0/12")


def test_the_oracle_is_marked_in_the_title():
    assert all("ORACLE" in table.title for table in made(COMPLETE, "oracle"))
    assert not any("ORACLE" in table.title for table in made(COMPLETE))


@pytest.mark.parametrize(
    ("facts", "shown"),
    [
        ({"conditions": {"threads": 4, "torch": "2.10"}}, ["ERM [threads=1]", "ERM [threads=4]"]),
        ({"protocol": "swad"}, ["ERM [protocol=domainbed]", "ERM [protocol=swad]"]),
        ({"conditions": {"threads": 1, "torch": "2.11"}}, ["ERM [torch=2.10]", "ERM [torch=2.11]"]),
    ],
)
def test_other_conditions_are_other_rows(facts, shown):
    usual = {"conditions": {"threads": 1, "torch": "2.10"}}
    table = made([*sweep({("ash", 0): 0.1}, **usual), *sweep({("ash", 1): 0.9}, **(usual | facts))])[0]
    assert [row.label for row in table.rows] == shown
    assert [row.cells[0].value for row in table.rows] == [10.0, 90.0]


def test_folded_batch_norm_is_compared_within_a_data_set():
    """Whether a network has any depends on the network, which depends on the data."""
    digits = sweep({("ash", 0): 0.1}, dataset="digits", conditions={"batch_norm": "not folded"})
    photos = sweep({("ash", 0): 0.9}, dataset="photos", conditions={"batch_norm": "folded"})
    assert [row.label for row in made([*digits, *photos])[-1].rows] == ["ERM"]
    before = sweep({("ash", 1): 0.9}, dataset="photos", conditions={"batch_norm": "not folded"})
    labels = [row.label for row in made([*photos, *before])[0].rows]
    assert labels == ["ERM [batch_norm=folded]", "ERM [batch_norm=not folded]"]


def test_thread_counts_are_compared_over_data_sets_and_steps_within_one():
    one = sweep({("ash", 0): 0.1}, dataset="trees", conditions={"threads": 1, "steps": 301})
    other = sweep({("ash", 0): 0.9}, dataset="rocks", conditions={"threads": 1, "steps": 5001})
    assert [row.label for row in made([*one, *other])[-1].rows] == ["ERM"]
    mixed = sweep({("ash", 0): 0.9}, dataset="rocks", conditions={"threads": 2, "steps": 5001})
    assert [row.label for row in made([*one, *mixed])[-1].rows] == ["ERM [threads=1]", "ERM [threads=2]"]


def test_options_given_by_hand_are_conditions_unless_they_are_searched():
    by_hand = [*sweep({("ash", 0): 0.1}, options={"lr": 1}), *sweep({("birch", 0): 0.2}, options={"lr": 2})]
    assert [row.label for row in made(by_hand)[0].rows] == ["ERM [lr=1]", "ERM [lr=2]"]
    searched = [*sweep({("ash", 0): 0.1}, options={"lr": 1}), *sweep({("ash", 0): 0.2}, options={"lr": 2}, draw=1)]
    assert [row.label for row in made(searched)[0].rows] == ["ERM"]


def test_two_runs_in_one_place_are_an_error_and_one_run_twice_is_not():
    once = sweep({("ash", 0): 0.1})
    twice = sweep({("ash", 0): 0.2}, id="another", folder="runs/b")
    assert cells(made([*once, *once])[0])["runs"].text == "1/1"
    with pytest.raises(ConfigError, match=r"two finished runs of ERM on trees, target ash, trial 0, draw 0.*runs/b"):
        made([*once, *twice])


def test_one_name_for_different_domains_is_an_error():
    other = sweep({("oak", 0): 0.5}, algorithm="CORAL", domains=("oak", "pine"))
    with pytest.raises(ConfigError, match="oak, pine and ash, birch, cedar"):
        made([*COMPLETE, *other])


def test_the_paper_stands_beside_ours_with_the_difference():
    runs = sweep({(d, 0): 0.8 for d in PACS}, domains=PACS, dataset="PACS", algorithm="DSPReg")
    table, averages = made(runs)
    theirs, apart = cells(table, "DSPReg", "paper"), cells(table, "DSPReg", "difference")
    assert theirs["sketch"].format() == "81.4 ± 0.5"
    assert apart["sketch"].format() == "-1.4"
    assert cells(averages, "DSPReg", "paper")["PACS"].value == 87.5
    assert cells(averages, "DSPReg", "difference")["PACS"].format() == "-7.5"
    for other in ("leave-one-out", "oracle"):  # the paper selects by training domains
        assert {row.source for row in made(runs, other)[0].rows} == {"ours"}


def test_runs_unlike_the_papers_are_said_to_be():
    runs = sweep({(d, 0): 0.8 for d in PACS}, domains=PACS, dataset="PACS", conditions={"steps": 300})
    assert any("steps=300, unlike the paper" in note for note in made(runs)[0].notes)
    runs = sweep({(d, 0): 0.8 for d in PACS}, domains=PACS, dataset="PACS", conditions={"steps": 5001})
    assert not any("unlike" in note for note in made(runs)[0].notes)


@pytest.mark.parametrize("form", FORMATS)
def test_the_order_of_runs_changes_no_byte(form):
    runs = [*random_traces(1, missing=0.1), *sweep({("ash", 0): 0.3}, algorithm="CORAL")]
    before = FORMATS[form](made(runs))
    for seed in range(5):
        random.Random(seed).shuffle(runs)
        assert FORMATS[form](made(runs)) == before


def test_damaged_runs_are_named_below_the_averages():
    assert "left out: runs/x is torn" in FORMATS["markdown"](made(COMPLETE, damaged=["runs/x is torn"]))
