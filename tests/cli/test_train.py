"""`dspreg train` as it is typed."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
import yaml

from dspreg.cli import main
from dspreg.runs.folder import RunFolder
from helpers import tiny


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return tiny.make_images(tmp_path_factory.mktemp("images") / "woods")


def typed(images, out, *more):
    s = tiny.SETTINGS
    options = ["--dataset", f"folder:{images}", "--target", "elm", "--algorithm", s["algorithm"], "--out", str(out)]
    options += ["--model", s["model"], "--weights", "none", "--threads", "1", "--profile", "never", "--save-every", "3"]
    for name in s.keys() - {"targets", "algorithm", "model", "weights"}:
        options += ["--set", f"{name}={s[name]}"]
    return ["train", *options, *map(str, more)]


@pytest.mark.filterwarnings("ignore::dspreg.Notice")
def test_flags_and_python_train_the_same(images, tmp_path, capsys, monkeypatch):
    from dspreg.training import train

    monkeypatch.setenv("DSPREG_CACHE", str(tmp_path / "cache"))
    assert main(typed(images, tmp_path / "a")) == 0
    printed = capsys.readouterr()
    train(tiny.settings(images), tiny.execution(), tmp_path / "b")
    assert tiny.ending(tmp_path / "a") == tiny.ending(tmp_path / "b")
    result = RunFolder(tmp_path / "a").result()["selected"]
    assert f"unseen elm {100 * result['accuracy']['elm']['in']:.1f} %" in printed.out
    assert f"selected at step {result['step']}" in printed.out
    assert "it/s" not in printed.err + printed.out  # no bar where there is no terminal
    assert main(typed(images, tmp_path / "a")) == 0
    assert "was finished before; every file is as it was" in capsys.readouterr().out


def test_print_config_is_a_configuration(images, tmp_path, capsys):
    assert main(["train", "--dataset", f"folder:{images}", "--target", "elm", "--print-config"]) == 0
    first = capsys.readouterr().out
    values = yaml.safe_load(first)
    assert values["lr"] == 5e-5
    assert values["model"] == "resnet50.tv_in1k"
    assert values["targets"] == ["elm"]
    (tmp_path / "run.yaml").write_text(first)
    assert main(["train", "--config", str(tmp_path / "run.yaml"), "--print-config"]) == 0
    assert capsys.readouterr().out == first
    more = ["--set", "lr=1e-3", "--lr", "2e-3", "--steps", "500"]
    assert main(["train", "--config", str(tmp_path / "run.yaml"), *more, "--print-config"]) == 0
    changed = yaml.safe_load(capsys.readouterr().out)
    assert {k: v for k, v in changed.items() if v != values[k]} == {
        "lr": 2e-3, "steps": 500, "algorithm": "SWA(start=250)",  # the method of one's own images, scaled
    }  # fmt: skip


def started(images, out, *more):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "DSPREG_CACHE": str(out.parent / "cache")}
    command = [sys.executable, "-m", "dspreg.cli", *typed(images, out, "--steps", "100000", *more)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 120
    while not list(out.glob("checkpoints/*.safetensors")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.05)
    return process


def ended(process):
    """What it said on stderr; stdout stays empty. One that hangs fails this test and no other."""
    try:
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
        process.wait()
    assert out == ""
    return err


@pytest.mark.parametrize(("number", "code", "workers"), [(signal.SIGTERM, 75, 0), (signal.SIGINT, 130, 1)])
def test_a_signal_leaves_a_checkpoint_and_its_code(images, tmp_path, number, code, workers):
    process = started(images, tmp_path / "run", "--workers", workers)
    process.send_signal(number)
    err = ended(process)
    assert process.returncode == code, err
    assert "run the same command again to resume" in err
    assert "Traceback" not in err
    assert list((tmp_path / "run" / "checkpoints").glob("*.safetensors"))
    assert not list((tmp_path / "run").rglob(".*part"))


def test_a_second_ctrl_c_ends_it_at_once_and_a_second_sigterm_does_not(images, tmp_path):
    for number, code in ((signal.SIGTERM, 75), (signal.SIGINT, 130)):
        process = started(images, tmp_path / str(code))
        process.send_signal(number)
        time.sleep(0.05)
        process.send_signal(number)
        err = ended(process)
        assert process.returncode == code
        if number == signal.SIGTERM:  # the scheduler waits for the checkpoint
            assert "run the same command again to resume" in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_does_not_spoil_the_end(number):
    code = """
        import atexit, os, sys
        from dspreg.cli.train import stopping

        @atexit.register
        def again():
            os.kill(os.getpid(), number)
            print("at the end", file=sys.stderr)

        with stopping():
            os.kill(os.getpid(), number)
        sys.exit(130)
    """
    code = f"number = {int(number)}\n" + textwrap.dedent(code)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 130
    assert "stopping after this step" in done.stderr
    assert "Traceback" not in done.stderr


def test_two_at_once_are_refused(images, tmp_path, capsys):
    process = started(images, tmp_path / "run")
    try:
        assert main(typed(images, tmp_path / "run", "--steps", "100000")) == 6
        assert "is in use by another training" in capsys.readouterr().err
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["train", "--out", "x"], 2, "no data set is given; add --dataset"),
        (["train", "--dataset", "digits", "--target", "print"], 2, "Add --out DIR"),
        (["train", "--dataset", "digits", "--out", "x"], 2, "which domain is held out? Add --target DOMAIN"),
        (["train", "--dataset", "digit", "--target", "print", "--out", "x"], 2, "Did you mean 'digits'?"),
        (["train", "--dataset", "digits", "--target", "prnt", "--out", "x"], 2, "Unknown domain 'prnt' of digits"),
        (["train", "--dataset", "digits", "--target", "print", "--set", "lrr=1"], 2, "Did you mean 'lr'?"),
        (["train", "--dataset", "digits", "--target", "print", "--set", "lr"], 2, "wanted key=value"),
        (["train", "--dataset", "digits", "--target", "print", "--lr", "fast"], 2, "--lr: lr='fast'; wanted a number"),
        (["train", "--dataset", "digits", "--target", "print", "--lr=-1"], 2, "lr=-1.0; wanted a number above 0"),
        (["train", "--dataset", "digits", "--target", "print", "--steps", "0"], 2, "steps=0; wanted a whole number"),
        (["train", "--dataset", "digits", "--target", "print", "--steps", "1.5"], 2, "steps='1.5'; wanted a whole"),
        (["train", "--dataset", "digits", "--target", "print", "--protocol", "swat"], 2, "one of domainbed, "),
        (["train", "--dataset", "digits", "--target", "print", "print", "--out", "x"], 2, "one domain twice"),
        (["train", "--dataset", "digits", "--target", "print", "--device", "gpu", "--out", "x"], 2, "device='gpu'"),
        (["train", "--config", "no.yaml", "--out", "x"], 2, "the configuration no.yaml can't be read"),
        (["train", "--dataset", "PACS", "--target", "sketch", "--out", "x"], 3, "there is no folder data/PACS"),
        (["train", "--dataset", "folder:none", "--target", "a", "--out", "x"], 3, "none"),
        (["train", "--dataset", "index:none.csv", "--target", "a", "--out", "x"], 3, "none.csv"),
        (["train", "--dataset", "digits", "--target", "print", "--algorithm", "DSPRegg", "--out", "x"], 2, "'DSPReg'?"),
        (["train", "--dataset", "digits", "--target", "print", "--algorithm", "DSPReg(wight=1)", "--out", "x"], 2,
         "Did you mean 'weight'?"),
        (["train", "--dataset", "digits", "--target", "print", "--model", "resnet5O", "--out", "x"], 2, "resnet50"),
        (["train", "--dataset", "digits", "--target", "print", "--model", "resnet18", "--out", "x"], 6, "--weights FI"),
        (["train", "--dataset", "digits", "--target", "print", "--out", "/proc/x"], 6, "/proc/x can't be written"),
        (["data", "verify", "no-such-folder"], 2, "no-such-folder"),
    ],
    ids=lambda value: " ".join(value)[-40:] if isinstance(value, list) else None,
)  # fmt: skip
def test_bad_input_gets_a_message_and_an_exit_code(tmp_path, monkeypatch, capsys, arguments, code, says):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert says in printed.err
    assert "Traceback" not in printed.err
    assert not (tmp_path / "x").exists()


def test_a_wrong_option_is_refused_before_torch_is_loaded():
    program = (
        "import sys\nfrom dspreg.cli import main\n"
        "code = main(['train', '--dataset', 'digits', '--target', 'print', '--set', 'lrr=1', '--out', 'x'])\n"
        "print(code, [m for m in ('torch', 'timm', 'pandas', 'matplotlib') if m in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout.splitlines()[-1] == "2 []"


def test_a_reader_that_dies_is_told_and_the_run_goes_on_later(images, tmp_path):
    process = started(images, tmp_path / "run", "--workers", 1)
    children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True).stdout
    for child in children.split():
        os.kill(int(child), signal.SIGKILL)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 6, err
    assert "a process that reads images died" in err
    assert "Traceback" not in err
    assert list((tmp_path / "run" / "checkpoints").glob("*.safetensors"))


def test_names_can_not_command_the_terminal(tmp_path, capsys):
    assert main(["train", "--dataset", f"folder:{tmp_path}/\x1b[2Jgone", "--target", "a", "--out", "x"]) == 3
    err = capsys.readouterr().err
    assert "gone" in err
    assert "\x1b" not in err


def test_help_says_the_defaults_and_what_they_depend_on(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    for text in (
        "learning rate (default: 5e-05; small images: 0.001)",
        "training steps (default: by data set)",
        "images per batch in evaluation (default: 64; swad: 128)",
        "a final model that is that of the last step (default: 0.2)",
        "(default: DSPReg; SWA for images of your own)",
        "seed of the split, the initial weights and the batch order (default: 0)",
    ):
        assert text in said
