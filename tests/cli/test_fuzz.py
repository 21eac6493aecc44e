"""Arguments, configurations, sweep files and specs that nobody would write: every answer is an answer.

No traceback, an exit code that has a meaning, no file outside of the current folder. Nothing is trained: what begins a
training or reads a network is replaced. `pytest tests/cli/test_fuzz.py --fuzz 2000` looks further.
"""

import argparse
import contextlib
import io
import os
import signal
import sys

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dspreg.cli
from dspreg.algorithms.registry import algorithms, options_of, parse
from dspreg.cli import build_parser, main
from dspreg.config.train_config import OPTIONS
from dspreg.errors import ConfigError
from dspreg.penalty.engine_spec import parse_engine
from dspreg.protocol.sweep_file import KEYS
from dspreg.specs import parse_stack, shortest_spec

ANSWERS = {0, 2, 3, 4, 6}
HANGS = 60  # seconds after which a command is one that hangs

# Values.

LETTERS = st.characters(exclude_characters="/", exclude_categories=())  # a slash could lead out of the folder
TEXT = st.text(LETTERS, max_size=12)
NASTY = st.sampled_from([
    "", " ", "-", "--", "-1", "0", "1", "3", "1e3", "1e400", "nan", "-inf", "1e-400", "9" * 30, "9" * 5000, "0x10",
    "1_000", "٣", "true", "no", "null", "none", "all", "~", "*", "%s", "{}", "$HOME", "`id`", "a\0b", "\udcff",
    "\N{RIGHT-TO-LEFT OVERRIDE}x", "x" * 300, "x" * 5000, "letter.txt", "empty", "photos", "list.yaml", "store",
    "gone", "gone.yaml", "gone.py", ".", "digits", "PACS", "folder:photos", "folder:", "index:letter.txt",
    "folder:empty", "print", "dawn", "dawn,noon", "cpu", "cuda", "ERM", "DSPReg", "CORAL(weight=0.5)+DSPReg",
    "CORAL(", "no_such.Module", "lr=1", "steps=1e3", "=", "lr==", "a=b=c", "training", "local", "ray", "here:1",
    "127.0.0.1:1", "selected", "99", "latex", "main", "smoke", "🦉",
])  # fmt: skip
VALUES = st.one_of(NASTY, TEXT, st.integers().map(str), st.floats().map(str))


def flags_of(parser, path=()):
    """(command, its flags), for every command."""
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for group in groups:
        for name, each in group.choices.items():
            yield from flags_of(each, (*path, name))
    if not groups:
        yield (
            path,
            [text for action in parser._actions for text in action.option_strings if text not in ("-h", "--help")],
        )


COMMANDS = list(flags_of(build_parser()))


GOOD = {  # commands that would do something, to be spoiled by what follows
    "train": "train --dataset digits --target print --out new",
    "sweep": "sweep --dataset digits --algorithms ERM --store new",
    "paper": "paper components --scale smoke --store new",
    "report": "report store",
    "status": "status store",
    "cancel": "cancel store",
    "measure": "measure --model small-cnn --weights none --dataset digits",
}


@st.composite
def argument_lists(draw):
    command, flags = draw(st.sampled_from(COMMANDS))
    words = [*command]
    if draw(st.booleans()):
        words = GOOD.get(command[0], " ".join(command)).split()
    for _ in range(draw(st.integers(0, 5))):
        if flags and draw(st.booleans()):
            words.append(draw(st.sampled_from(flags)))
        words += draw(st.lists(VALUES, max_size=2))
    return words


SCALARS = st.one_of(VALUES, st.none(), st.booleans(), st.integers(), st.floats(), st.dates())
NODES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3))
OPTION_KEYS = st.one_of(st.sampled_from([*OPTIONS, "target", "batch-size", "<<"]), TEXT)
SWEEP_KEYS = st.one_of(st.sampled_from([*KEYS, "same-draws"]), OPTION_KEYS)
MARKS = st.text(st.sampled_from("&*!|>?:-[]{},'\"#%@ \n\ta0~\ufeff\0\x85é"), max_size=60)


def yaml_files(keys):
    """Dumped values; or marks of YAML in any order, alone or within a file that was good."""
    dumped = st.dictionaries(keys, NODES, max_size=6).map(lambda value: yaml.safe_dump(value, allow_unicode=True))
    broken = st.tuples(dumped, MARKS, st.integers(0, 200)).map(lambda t: t[0][: t[2]] + t[1] + t[0][t[2] :])
    return st.one_of(dumped, broken, MARKS).map(lambda text: text.encode("utf-8", "surrogatepass")) | st.binary(
        max_size=40
    )


SWEEPS = yaml_files(SWEEP_KEYS) | st.fixed_dictionaries(
    {"datasets": st.lists(NASTY, max_size=2), "algorithms": st.lists(NASTY, max_size=2)},
    optional={
        "trials": SCALARS,
        "draws": SCALARS,
        "targets": NODES,
        "only": SCALARS,
        "settings": NODES,
        "execution": NODES,
    },
).map(lambda value: yaml.safe_dump(value).encode())

LITERALS = st.recursive(
    st.one_of(st.integers(), st.floats(), st.booleans(), st.none(), TEXT, st.binary(max_size=4), st.complex_numbers()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=2),
).map(repr)
PIECES = st.sampled_from([
    *algorithms(), "weight", "radius", "lazy", "lookahead", "momentum", "exact", "2*weight", "no_such.Own", "A.B",
    "(", ")", "[", "]", "+", "-", "*", "**", "=", ",", ":=", "lambda: 0", "x if y else z", "f'{x}'", "...", "\\", "#",
    "\n", "9" * 400, "1e999", "'", '"', "\0", "\udc80", "А", "ＥＲＭ", "\N{ZERO WIDTH SPACE}", "__import__('os')",
    "((((((((((", "not " * 50,
])  # fmt: skip


@st.composite
def specs(draw):
    if draw(st.booleans()):
        return "".join(draw(st.lists(st.one_of(PIECES, LITERALS, TEXT), max_size=8)))
    layers = []
    for name in draw(st.lists(st.sampled_from(list(algorithms())), min_size=1, max_size=4)):
        known = list(options_of(algorithms()[name])) or ["x"]
        chosen = draw(st.dictionaries(st.sampled_from(known), LITERALS, max_size=3))
        layers.append(f"{name}({', '.join(f'{option}={value}' for option, value in chosen.items())})")
    return "+".join(layers)


# The place.

OUTSIDE = []  # what was opened for writing, made, renamed or removed elsewhere
WATCHED = None  # the folder that a command may write to, while one runs
CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate", "shutil.rmtree"}


def watch(event, arguments):
    """An audit hook; Python has no way to take it away again."""
    if WATCHED is None:
        return
    writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    if (writes or event in CHANGES) and isinstance(arguments[0], str | bytes):
        try:
            path = os.path.abspath(os.fsdecode(arguments[0]))
        except ValueError:  # of a null character
            return
        if not path.startswith((WATCHED, os.devnull)) and "__pycache__" not in path:
            OUTSIDE.append((event, path))


sys.addaudithook(watch)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with some files in it, where nothing is trained."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    (tmp_path / "letter.txt").write_text("dear reader,\nthis is a letter\n")
    (tmp_path / "list.yaml").write_text("- lr\n")
    (tmp_path / "empty").mkdir()
    (tmp_path / "photos" / "dawn" / "cat").mkdir(parents=True)

    def refuse(*_, **__):
        raise ConfigError("a training would begin")

    from dspreg.runs.store import RunStore

    RunStore(tmp_path / "store").make()
    for name in ("dspreg.training.loop.train", "dspreg.cli.sweep.launch_sweep", "dspreg.cli.paper._look",
                 "dspreg.paper.overhead.measure_costs", "dspreg.inference.profile_run.profile_network"):  # fmt: skip
        monkeypatch.setattr(name, refuse)
    OUTSIDE.clear()
    return tmp_path


def hang(*_):
    raise TimeoutError(f"no answer in {HANGS} seconds")


def answer(words):
    global WATCHED
    out, err = io.StringIO(), io.StringIO()
    WATCHED = os.getcwd()
    before = signal.signal(signal.SIGALRM, hang)
    signal.alarm(HANGS)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = main(words)
            except SystemExit as stop:
                code = stop.code
    finally:
        WATCHED = None
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    said = err.getvalue()
    assert code in ANSWERS, (words, code, said[-2000:])
    assert "Traceback" not in said, (words, said[-2000:])
    assert code == 0 or "dspreg" in said, (words, "no message")
    assert len(said) < 20_000, (words, len(said))
    assert "\x1b" not in said
    assert not OUTSIDE, (words, OUTSIDE)
    return code


def fuzz(request, check, *strategies):
    """As many examples as `--fuzz` says."""
    how = settings(
        max_examples=request.config.getoption("--fuzz"), deadline=None, database=None, print_blob=False,
        suppress_health_check=list(HealthCheck), derandomize=request.config.getoption("--fuzz") == 50,
    )  # fmt: skip
    how(given(*strategies)(check))()


def test_arguments(request, place):
    def check(words):
        answer(words)

    fuzz(request, check, argument_lists())


def test_configurations(request, place):
    def check(data):
        (place / "a.yaml").write_bytes(data)
        answer(["train", "--config", "a.yaml", "--print-config"])

    fuzz(request, check, yaml_files(OPTION_KEYS))


def test_sweep_files(request, place):
    def check(data):
        (place / "a.yaml").write_bytes(data)
        answer(["sweep", "a.yaml", "--dry-run"])

    fuzz(request, check, SWEEPS)


def test_specs(request, place):
    def check(text):
        for read in (parse_stack, shortest_spec, parse, parse_engine):
            with contextlib.suppress(ConfigError):
                read(text)
        answer(["sweep", "--dataset", "digits", "--draws", "1", f"--algorithms={text}", "--dry-run"])

    fuzz(request, check, specs())


def test_the_fuzzers_see_a_bug(request, place, monkeypatch):
    """And a file that goes elsewhere."""
    monkeypatch.setattr("dspreg.cli.status.open_store", lambda path: 1 / 0)
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        answer(["status", "x"])
    elsewhere = place.parent / "elsewhere"
    monkeypatch.setattr("dspreg.cli.status.open_store", lambda path: elsewhere.touch() or elsewhere.write_text("x"))
    with pytest.raises(AssertionError):
        answer(["status", "x"])
    assert ("open", str(elsewhere)) in OUTSIDE
    assert dspreg.cli.COMMANDS
