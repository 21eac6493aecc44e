"""Where output goes, and what becomes of a command when it can't: pipes, full disks, closed handles, odd terminals."""

import os
import subprocess
import sys

import pytest

from dspreg.cli import main
from dspreg.cli.output import Output

FULL = OSError(28, "No space left on device")


class Failing:
    """A stream whose disk is full, or whose reader is gone, after some writes."""

    encoding = "utf-8"

    def __init__(self, error, after=0):
        self.error, self.left, self.text = error, after, ""

    def write(self, text):
        if self.left == 0:
            raise self.error
        self.left -= 1
        self.text += text

    def flush(self):
        if self.left == 0:
            raise self.error

    def isatty(self):
        return False

    def fileno(self):
        raise OSError("none")


def test_a_stream_remembers_and_goes_on():
    stream = Output(Failing(FULL, after=1))
    assert [stream.write(text) for text in ("one", "two!", "three")] == [3, 4, 5]
    assert stream.stream.text == "one"
    assert stream.failure is FULL


@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize(
    "command", [["algorithms"], ["data", "list"], ["paper"], ["--help"], ["--version"]], ids=lambda words: words[0]
)
def test_a_full_disk_is_said_and_is_exit_code_6(command, after, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdout", Failing(FULL, after))
    assert main(command) == 6
    assert "what was printed is lost: stdout can't be written (No space left on device)" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["algorithms"], ["data", "list"], ["paper"]], ids=lambda words: words[0])
def test_a_closed_pipe_is_nothing_to_talk_about(command, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdout", Failing(BrokenPipeError(32, "Broken pipe")))
    assert main(command) == 0
    assert capsys.readouterr().err == ""


def test_help_through_a_closed_pipe(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdout", Failing(BrokenPipeError(32, "Broken pipe")))
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    assert capsys.readouterr().err == ""


def test_no_stdout_at_all(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["data", "list"]) == 6
    assert "stdout can't be written (Bad file descriptor)" in capsys.readouterr().err


def test_no_stderr_at_all(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stderr", None)
    assert main(["algorithms", "CORL"]) == 2
    assert capsys.readouterr().out == ""  # print(file=None) would have written it there


def test_an_error_of_its_own_stays_the_exit_code(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdout", Failing(FULL))
    assert main(["algorithms", "CORL"]) == 2


def test_the_streams_are_given_back(capsys):
    before = sys.stdout, sys.stderr
    main(["data", "list"])
    assert (sys.stdout, sys.stderr) == before


def test_a_folder_that_was_removed(tmp_path, monkeypatch, capsys):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    for command in (["data", "verify", "folder:photos"], ["train", "--dataset", "folder:x", "--out", "y"]):
        assert main(command) in (3, 6)
        assert "Traceback" not in capsys.readouterr().err
    monkeypatch.setattr("dspreg.cli.status.open_store", lambda path: os.getcwd())
    assert main(["status", "runs"]) == 6
    assert "the current folder was removed; change to one that is there" in capsys.readouterr().err


def test_what_the_system_refuses_is_no_bug(monkeypatch, capsys):
    def refuse(_):
        raise PermissionError(13, "Permission denied", "/somewhere/else")

    monkeypatch.setattr("dspreg.cli.status.open_store", refuse)
    assert main(["status", "runs"]) == 6
    assert capsys.readouterr().err.startswith("dspreg: /somewhere/else: Permission denied. Is the path right")


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 byte")]
)
def test_want_of_memory_is_no_bug(error, monkeypatch, capsys):
    def refuse(_):
        raise error

    monkeypatch.setattr("dspreg.cli.status.open_store", refuse)
    assert main(["status", "runs"]) == 6
    assert capsys.readouterr().err == "dspreg: not enough memory; a smaller batch_size or image_size needs less\n"


POOR = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "COLUMNS": "1", "PYTHONUTF8": "0", "PATH": os.environ["PATH"]}
COMMANDS = """
import sys
from dspreg.cli import main
for words in (["algorithms", "DSPReg"], ["algorithms"], ["data", "list"], ["paper"], ["train", "--help"],
              ["sweep", "--help"], ["train", "--dataset", "dig\\u00eets", "--target", "\\u6f22"],
              ["sweep", "--dataset", "digits", "--algorithms", "ERM", "--dry-run"]):
    try:
        code = main(words)
    except SystemExit as stop:
        code = stop.code
    print("code", code, file=sys.stderr)
"""


def test_a_poor_environment():
    """No HOME, no locale, ASCII alone, a terminal one letter wide."""
    environment = POOR | {name: os.environ[name] for name in ("PYTHONPATH", "LD_LIBRARY_PATH") if name in os.environ}
    done = subprocess.run([sys.executable, "-c", COMMANDS], env=environment, capture_output=True, text=True)
    assert "Traceback" not in done.stderr
    codes = [line.split()[1] for line in done.stderr.splitlines() if line.startswith("code ")]
    assert codes == ["0"] * 6 + ["2", "0"], done.stderr
    assert done.stdout.isascii()


@pytest.mark.parametrize("redirected", ["closed pipe", "closed"])
def test_as_a_process(redirected):
    """Nothing is complained about after the end, either."""
    command = [sys.executable, "-m", "dspreg.cli", "data", "list"]
    if redirected == "closed":
        done = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", *command], stderr=subprocess.PIPE, text=True)
        assert done.returncode == 6
        assert done.stderr.count("\n") == 1
        return
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")
