"""`dspreg --print-completion`: the script is read by a real bash, which is asked what it would complete."""

import shutil
import subprocess

import pytest

import dspreg
from dspreg.cli import main

ASK = """
set -u
source "$1"
shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}; COMPREPLY=()
function_of=$(complete -p dspreg | sed 's/.*-F \\([^ ]*\\).*/\\1/')
set +u
compopt() { :; }  # only while the Tab key is pressed
$function_of dspreg "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


def script(shell, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--print-completion", shell])
    assert not stop.value.code
    return capsys.readouterr().out


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return tmp_path_factory.mktemp("completion")


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("sw", ["sweep"]),
        ("data ver", ["verify"]),
        ("train --calib", ["--calibrate"]),
        ("train --optimizer la", ["lamb"]),
        ("train --out x --target a --protocol s", ["swad"]),
        ("report x --form", ["--format"]),
        ("sweep --algorithms ERM CO", ["CORAL"]),
        ("train --dataset PA", ["PACS"]),
        ("data get digi", []),
        ("export run-a --out run-", ["run-a", "run-b.onnx"]),
        ("evaluate run-", ["run-a"]),
    ],
)
def test_a_real_bash_completes(line, wanted, made, capsys):
    place = made / "dspreg.bash"
    if not place.exists():
        place.write_text(script("bash", capsys))
        (made / "run-a").mkdir()
        (made / "run-b.onnx").touch()
    said = subprocess.run(
        ["bash", "--norc", "-c", ASK, "bash", place, "dspreg", *line.split(" ")],
        capture_output=True, text=True, cwd=made, check=True,
    )  # fmt: skip
    assert said.stderr == ""
    assert sorted(said.stdout.split()) == wanted


@pytest.mark.parametrize(("shell", "start"), [("zsh", "#compdef dspreg"), ("tcsh", "#")])
def test_other_shells_have_a_script_with_every_command(shell, start, capsys):
    made = script(shell, capsys)
    assert made.startswith(start)
    for command in ("train", "sweep", "report", "--print-completion"):
        assert command in made


def test_python_m_is_the_command_line(capsys, monkeypatch):
    import runpy

    monkeypatch.setattr("sys.argv", ["dspreg", "--version"])
    with pytest.raises(SystemExit) as stop:
        runpy.run_module("dspreg", run_name="__main__")
    assert not stop.value.code
    assert capsys.readouterr().out == f"dspreg {dspreg.__version__}\n"
