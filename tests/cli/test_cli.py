"""The command line: what it prints, where, and the exit code it leaves."""

import re
import subprocess
import sys

import pytest

import dspreg
import dspreg.algorithms as index
from dspreg.algorithms import Algorithm
from dspreg.cli import main

CLASSES = [
    c for n in index.__all__ if isinstance(c := getattr(index, n), type) and issubclass(c, Algorithm) and c != Algorithm
]


def run(*arguments):
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True)


def test_algorithms_are_listed_one_per_line(capsys):
    assert main(["algorithms"]) == 0
    head, *lines, _, experimental, _, cost = capsys.readouterr().out.splitlines()
    assert experimental == "experimental, and in no table: FisherTune"
    assert head.split() == ["cost", "changes"]
    assert [line.split()[0] for line in lines] == sorted(
        (c.__name__ for c in CLASSES if not c.experimental), key=str.lower
    )
    assert len(lines) >= 24
    for line in lines:
        assert index.__dict__[line.split()[0]].__doc__.split("\n")[0] in line
    assert cost.startswith("cost: a step of ResNet-18")


@pytest.mark.parametrize(
    ("name", "arrows"),
    [("CORAL", "loss"), ("SAM", "gradient"), ("Fish", "update"), ("Mixup", "forward"), ("GroupDRO", "build, loss")],
)
def test_the_list_says_what_each_changes(capsys, name, arrows):
    main(["algorithms"])
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith(name))
    assert f"  {arrows}  " in line


def test_one_algorithm_in_full(capsys):
    assert main(["algorithms", "CORAL"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("CORAL: changes loss\n")
    assert "mean_f (μ_i − μ_j)²" in out  # the formula
    assert "weight = 1.0   drawn from 10^U(-1, 1)" in out


@pytest.mark.parametrize("cls", CLASSES)
def test_every_algorithm_has_a_page(capsys, cls):
    assert main(["algorithms", cls.__name__]) == 0
    assert cls.__doc__.split("\n")[0] in capsys.readouterr().out


def test_an_algorithm_of_your_own(capsys, tmp_path, monkeypatch):
    code = 'from dspreg import Algorithm\n\nclass Own(Algorithm):\n    """Does nothing at all."""\n'
    (tmp_path / "methods_for_cli.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["algorithms", "methods_for_cli.Own"]) == 0
    assert "Does nothing at all." in capsys.readouterr().out


def test_a_misspelt_name_gets_the_nearest_one(capsys):
    assert main(["algorithms", "CORL"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("dspreg: unknown algorithm 'CORL'. Did you mean 'CORAL'?")
    assert "Traceback" not in printed.err


def test_a_module_that_is_not_there(capsys):
    assert main(["algorithms", "no_such_module.Own"]) == 2
    assert "no module 'no_such_module'; is its folder on PYTHONPATH?" in capsys.readouterr().err


def test_version(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"dspreg {dspreg.__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["algoritms"], ["algorithms", "CORAL", "SAM"], ["--nope"]])
def test_a_wrong_call_ends_with_usage_on_stderr(capsys, arguments):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "usage: dspreg" in printed.err


COMMANDS = [
    "train",
    "sweep",
    "status",
    "watch",
    "retry",
    "cancel",
    "report",
    "measure",
    "evaluate",
    "predict",
    "export",
    "data",
    "algorithms",
]


@pytest.mark.parametrize("command", [[], *([c] for c in COMMANDS)], ids=str)
def test_help_ends_with_examples_that_keep_their_lines(capsys, command):
    with pytest.raises(SystemExit) as stop:
        main([*command, "--help"])
    assert stop.value.code == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    examples = printed.out.partition("examples:\n")[2].split("\n\n")[0].splitlines()
    assert len(examples) >= 3
    assert all(line.startswith(f"  dspreg {' '.join(command)}") for line in examples)


def test_every_command_is_in_the_list(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    listed = capsys.readouterr().out
    assert all(re.search(rf"\n    {command}\s", listed) for command in COMMANDS)


def test_exit_code_of_the_process():
    said = run("-m", "dspreg.cli", "algorithms", "no_such_module.Own")
    assert said.returncode == 2
    assert said.stdout == ""
    assert "Traceback" not in said.stderr


def test_help_starts_without_torch():
    program = (
        "import sys\nfrom dspreg.cli import main\ntry:\n    main(['--help'])\nexcept SystemExit:\n"
        "    print([m for m in ('torch', 'pandas', 'matplotlib') if m in sys.modules])"
    )
    said = run("-c", program)
    assert said.returncode == 0, said.stderr
    assert said.stdout.splitlines()[-1] == "[]"
