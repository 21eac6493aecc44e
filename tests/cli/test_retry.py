"""`dspreg retry`: what failed or was cancelled gets its attempts again, and nothing else is touched."""

import pytest

from dspreg.cli import main
from helpers.stores import diverge, fail, files, finish, planned, put, start


@pytest.fixture
def made(tmp_path):
    return planned(tmp_path / "store")


DIVERGED = "it diverged, and would again with bitwise identical results; name it to retry it nevertheless"


def again(store, *runs):
    return main(["retry", str(store.path), *runs])


def states(store, runs):
    return [store.status(run).status for run in runs]


def test_all_that_failed_or_were_cancelled(made, capsys):
    store, runs = made
    kinds = ("finished", "failed 3", "failed 1", "cancelled", "diverged", "started", "new", "new")
    for run, kind in zip(runs, kinds, strict=True):
        put(store, run, kind)
    start(store, runs[1])  # it has a checkpoint to go on from
    assert again(store) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{runs[4].id}  {runs[4]}: left out: {DIVERGED}",
        f"{runs[1].id}  {runs[1]}: to be tried again; it was failed after 3 attempts: no images",
        f"{runs[2].id}  {runs[2]}: to be tried again; it was failed after 1 attempt: no images",
        f"{runs[3].id}  {runs[3]}: to be tried again; it was cancelled: dspreg retry takes it up again",
        "3 to be tried again; the next dspreg sweep takes them up",
    ]
    assert states(store, runs) == [
        "finished",
        "stopped",
        "not started",
        "not started",
        "failed",
        "stopped",
        "not started",
        "not started",
    ]
    assert again(store) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "nothing to retry"


def test_those_that_are_named_by_the_beginning_of_their_ids(made, capsys):
    store, runs = made
    for run in runs:
        fail(store, run)
    ids = [run.id for run in runs]
    short = next(n for n in range(1, 17) if sum(each.startswith(ids[2][:n]) for each in ids) == 1)
    assert again(store, ids[2][:short], ids[5], ids[5]) == 0
    assert "2 to be tried again" in capsys.readouterr().out
    assert [n for n, state in enumerate(states(store, runs)) if state == "not started"] == [2, 5]


def test_a_run_that_diverged_is_retried_when_it_is_named(made):
    store, runs = made
    diverge(store, runs[0])
    assert again(store, runs[0].id) == 0
    assert states(store, runs[:1]) == ["stopped"]


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("finished", "it is finished; to train it anew, remove {folder}"),
        ("damaged", "last.safetensors is damaged or was changed"),
        ("new", "it did not fail; the next sweep takes it up anyway"),
        ("started", "it did not fail; the next sweep takes it up anyway"),
        ("trained", "it is being trained"),
    ],
)
def test_what_can_not_be_retried_is_said_and_nothing_is(made, capsys, kind, why):
    store, runs = made
    fail(store, runs[0])
    leases = store.leases()
    if kind == "trained":
        fail(store, runs[1], 2)
        leases.acquire([runs[1].id])
    elif kind == "damaged":
        (finish(store, runs[1]) / "last.safetensors").write_bytes(b"other")
    else:
        put(store, runs[1], kind)
    before = files(store.path)
    assert again(store, runs[0].id, runs[1].id) == 2
    leases.close()
    said = capsys.readouterr().err
    folder = store.path / "runs" / runs[1].id
    assert f"{runs[1].id}  {runs[1]}: " in said
    assert why.format(folder=folder) in said
    assert (f"remove {folder}" in said) == (kind in ("finished", "damaged"))
    assert runs[0].id not in said
    assert {p: v for p, v in before.items() if p.suffix == ".json"} == {
        p: v for p, v in files(store.path).items() if p.suffix == ".json"
    }


def test_what_is_being_tried_again_keeps_its_count(made, capsys):
    store, runs = made
    fail(store, runs[0], 2)
    leases = store.leases()
    leases.acquire([runs[0].id])
    assert again(store) == 0
    leases.close()
    assert capsys.readouterr().out == "nothing to retry\n"
    assert store.status(runs[0]).attempts == 2


def test_a_damaged_one_among_all_is_told_and_the_others_are_retried(made, capsys):
    store, runs = made
    for run in runs[:2]:
        start(store, run)
        fail(store, run)
    (store.folder(runs[0]) / "run.json").write_text("{")
    assert again(store) == 0
    first, second, _ = capsys.readouterr().out.splitlines()
    assert f"{runs[0].id}  {runs[0]}: left out: it is damaged" in first
    assert f"remove {store.folder(runs[0]).path}" in first
    assert second.startswith(runs[1].id)
    assert states(store, runs[:2]) == ["damaged", "stopped"]


@pytest.mark.parametrize("command", ["retry", "cancel"])
def test_names_of_none_or_several_are_refused(made, capsys, command, tmp_path):
    store, runs = made
    before = files(store.path)
    typed = runs[0].id[:-1] + ("0" if runs[0].id[-1] != "0" else "1")
    assert main([command, str(store.path), typed]) == 2
    assert f"no run of {store.path} begins with '{typed}'. Did you mean '{runs[0].id}'?" in capsys.readouterr().err
    assert main([command, str(store.path), ""]) == 2
    capsys.readouterr()
    common = next(run.id[0] for run in runs if sum(each.id[0] == run.id[0] for each in runs) > 1)
    count = sum(run.id[0] == common for run in runs)
    assert main([command, str(store.path), common]) == 2
    assert f"'{common}' begins {count} runs: " in capsys.readouterr().err
    assert main([command, str(tmp_path), "--all" if command == "cancel" else "a"]) == 2
    assert "is no store of runs" in capsys.readouterr().err
    assert files(store.path) == before
