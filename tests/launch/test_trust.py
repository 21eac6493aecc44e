"""A store from a stranger: what is trained, and imported for it, are the runs that this sweep was told to train."""

import sys
from importlib import import_module

import pytest

from dspreg.cli import main
from dspreg.errors import Preempted
from dspreg.launch.pool import PoolLauncher
from dspreg.launch.serial import SerialLauncher
from helpers.small_runs import EXECUTION
from helpers.sweeps import OPTIONS, launched, three
from helpers.tampered import SENTINEL, plant


@pytest.fixture
def begun(images, store, tmp_path, monkeypatch):
    """An unfinished run in a store that names code, and the mark that this code leaves."""
    monkeypatch.syspath_prepend(tmp_path)
    (run, *_) = three(images, steps=8, evaluate_every=1)
    seen = set()

    def pause():
        seen.update(p.name for p in (store.folder(run) / "checkpoints").glob("step-*"))
        if len(seen) >= 2:
            raise Preempted("stopped by the test")

    with pytest.raises(Preempted):
        launched(SerialLauncher(), [run], store, EXECUTION, pause=pause)
    yield run, plant(store, run, tmp_path)
    sys.modules.pop(SENTINEL, None)


@pytest.mark.parametrize("launcher", [SerialLauncher, PoolLauncher])
def test_names_that_only_the_store_holds_are_not_imported(begun, store, launcher):
    run, mark = begun
    ended = launched(launcher(), [run], store, EXECUTION)
    assert ended[run.id].status == "finished"
    assert [path.name for path in (store.path / "runs").iterdir()] == [run.id]  # what else it plans was not begun
    assert not mark.exists()
    import_module(SENTINEL)
    assert mark.exists()  # it was there to be found


def test_commands_on_a_store_import_nothing(begun, store, images, monkeypatch, tmp_path):
    run, mark = begun
    settings = [text for name, value in OPTIONS.items() for text in ("--set", f"{name}={value}")]
    monkeypatch.chdir(tmp_path)  # where the module lies
    assert main(["status", str(store.path)]) in (0, 4)
    assert main(["retry", str(store.path)]) in (0, 4)
    assert main(["cancel", str(store.path), run.id]) in (0, 2, 4)
    assert main(["retry", str(store.path)]) in (0, 4)
    assert main(["report", str(store.path)]) in (0, 2, 4)
    assert main([
        "sweep", "--dataset", f"folder:{images}", "--algorithms", "ERM", "--targets", "noon", "--trials", "1",
        "--draws", "1", "--only", "training", "--store", str(store.path), "--jobs", "0", "--workers", "0", *settings,
    ]) == 0  # fmt: skip
    assert not mark.exists()
