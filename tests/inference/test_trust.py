"""A result file decides nothing about what Python imports: names of code that is not dspreg's need the user's word."""

import shutil
import sys

import pytest

import dspreg
from dspreg.cli import main
from dspreg.config.measure_config import MeasureConfig
from dspreg.errors import ConfigError, IntegrityError
from helpers.small_runs import photos, trained
from helpers.tampered import change_description, change_model

NAME = "sentinel_of_a_stranger"
SENTINEL = """
from pathlib import Path
from dspreg import ERM
from dspreg.data.digits import Digits

Path({mark!r}).touch()

class Method(ERM):
    pass

class Data(Digits):
    def __init__(self, root):
        super().__init__()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return photos(tmp_path_factory.mktemp("images") / "photos", each=6)


@pytest.fixture(scope="module")
def finished(folder, tmp_path_factory):
    return trained(folder, tmp_path_factory.mktemp("finished") / "run", steps=1)


@pytest.fixture
def imported(tmp_path):
    return tmp_path / "imported"


@pytest.fixture
def run(finished, tmp_path, monkeypatch, imported):
    """In the current folder, which also holds a module, as does the run itself."""
    place = tmp_path / "downloads"
    shutil.copytree(finished, place / "run")
    for folder in (place, place / "run"):
        (folder / f"{NAME}.py").write_text(SENTINEL.format(mark=str(imported)), encoding="utf-8")
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(place))])
    yield place / "run"
    sys.modules.pop(NAME, None)


def method(run):
    for name in ("selected", "last"):
        change_model(run, lambda saved: saved["built"].update(algorithm=f"{NAME}.Method"), f"{name}.safetensors")


def data(run):
    change_description(run, lambda run: run["where"].update(dataset=f"{NAME}.Data", name=None))


def commands(run, folder):
    image = str(folder / "noon" / "cat" / "0.png")
    return {
        "predict": ["predict", str(run), image],
        "evaluate": ["evaluate", str(run), "--dataset", f"folder:{folder}"],
        "export": ["export", str(run), "--format", "safetensors"],
        "measure": ["measure", "--model", str(run), "--dataset", f"folder:{folder}", "--images", "4", "--no-null"],
    }


@pytest.mark.parametrize("name", ["predict", "evaluate", "export", "measure"])
def test_a_command_imports_no_method_that_a_model_names(run, folder, name, imported, capsys):
    method(run)
    command = commands(run, folder)[name]
    assert main(command) == 4
    said = capsys.readouterr().err
    assert f"selected.safetensors: built.algorithm: '{NAME}.Method' is to be imported" in said
    assert f"--trust {NAME}" in said
    assert not imported.exists()
    assert NAME not in sys.modules
    assert main([*command, "--trust", NAME[:-1]]) == 4  # another module, whose name is the beginning of it
    assert not imported.exists()
    assert main([*command, "--trust", "other", "--trust", NAME]) == 0
    assert imported.exists()


@pytest.mark.parametrize("command", [["evaluate"], ["measure", "--images", "4", "--no-null", "--model"]])
def test_a_command_imports_no_data_set_that_a_run_names(run, command, imported, capsys):
    data(run)
    assert main([*command, str(run)]) == 4
    said = capsys.readouterr().err
    assert f"where.dataset: '{NAME}.Data' is to be imported" in said
    assert f"--trust {NAME}" in said
    assert not imported.exists()
    assert main([*command, str(run), "--trust", NAME]) in (2, 3)  # its domains and classes are other ones
    assert imported.exists()


def test_functions_import_nothing_either(run, folder, imported, monkeypatch):
    monkeypatch.syspath_prepend(run.parent)
    method(run)
    calls = [
        lambda **how: dspreg.load(run, **how),
        lambda **how: dspreg.evaluate(run, dataset=f"folder:{folder}", **how),
        lambda **how: dspreg.predict(run, folder / "noon", **how),
        lambda **how: dspreg.export(run, "safetensors", **how),
        lambda **how: dspreg.measure_run(run, MeasureConfig(images=4, batch=2, null=False), **how),
    ]
    for call in calls:
        for trust in ((), ("other",), "other", ("",)):
            with pytest.raises(IntegrityError, match=f"trust=\\('{NAME}',\\)"):
                call(trust=trust)
    assert not imported.exists()
    for call in calls:
        call(trust=(NAME,))
    assert imported.exists()


def test_the_data_set_of_a_run_is_not_imported_by_functions(run, imported, monkeypatch):
    monkeypatch.syspath_prepend(run.parent)
    data(run)
    for call in (lambda: dspreg.evaluate(run), lambda: dspreg.measure_run(run, MeasureConfig())):
        with pytest.raises(IntegrityError, match="is to be imported"):
            call()
    assert not imported.exists()


@pytest.mark.parametrize("name", ["predict", "evaluate", "export", "measure"])
def test_nothing_is_imported_from_the_current_folder_that_a_package_happens_to_look_for(run, folder, name, monkeypatch):
    """As pandas does for numexpr: it is optional, and a file of that name beside a run would be executed."""
    seen = []

    def look(*_):
        seen.append(list(sys.path))
        raise ConfigError("enough")

    for module in ("load", "export"):
        monkeypatch.setattr(f"dspreg.inference.{module}.model_file", look)
    assert main(commands(run, folder)[name]) == 2
    assert seen
    assert all(str(run.parent) not in path and "" not in path for path in seen)


def test_a_report_and_a_status_import_nothing(run, tmp_path, imported, capsys):
    def rename(described):
        described["settings"]["algorithm"] = described["where"]["algorithm"] = f"{NAME}.Method(x=1)"
        described["where"]["dataset"] = f"{NAME}.Data"

    method(run)
    change_description(run, rename)
    assert main(["report", str(run.parent), "--contrast", f"{NAME}.Method(x=1)", "ERM(x=1)"]) in (2, 3, 4)
    assert main(["report", str(run.parent), "--contrast", f"{NAME}.Method(y=1)", "ERM"]) in (2, 3, 4)
    assert main(["report", str(run.parent)]) == 0
    assert NAME in capsys.readouterr().out
    main(["status", str(run.parent)])
    assert not imported.exists()


def test_what_the_user_types_is_imported_and_resumed(run, folder, tmp_path, imported, capsys):
    typed = [
        "train", "--dataset", f"folder:{folder}", "--target", "noon", "--algorithm", f"{NAME}.Method", "--steps", "2",
        "--model", "small-cnn", "--batch-size", "4", "--workers", "0", "--threads", "1", "--out", str(tmp_path / "own"),
    ]  # fmt: skip
    assert main(typed) == 0
    assert imported.exists()
    assert main(typed) == 0
    assert "finished before" in capsys.readouterr().out
    image = str(folder / "noon" / "cat" / "0.png")
    assert main(["predict", str(tmp_path / "own"), image]) == 4  # the folder may be anybody's
    assert main(["predict", str(tmp_path / "own"), image, "--trust", NAME]) == 0
    assert main(["evaluate", str(tmp_path / "own"), "--dataset", f"{NAME}.Data", "--trust", NAME]) == 3
    assert str(run.parent) not in sys.path
