"""`--compile`: the same numbers as without it, plain names in files, and a refusal where it can't be."""

import json
import shutil
import warnings

import pytest
import torch
from safetensors.torch import load_file

from dspreg.algorithms.registry import algorithms, parse
from dspreg.cli import main
from dspreg.config.train_config import Execution
from dspreg.errors import ConfigError, Notice, Preempted, ResourceError
from dspreg.testing.toy import IMAGE, toy_batches, toy_task
from dspreg.training import compiling
from dspreg.training.callbacks import Callback
from dspreg.training.compiling import compile_network, require_compilable, require_compiler
from dspreg.training.execution import environment
from dspreg.training.loop import train
from dspreg.training.step import train_step

REFUSED = {"DSPReg", "DomainDrop", "GMDG", "MIRO", "MixStyle"}
FURTHER = ["DSPReg(engine='lookahead')", "DSPReg(engine='momentum')", "DSPReg(engine='lazy(2)')", "SAM+Fish"]
CONFIG = {"dataset": "digits", "targets": ("print",), "algorithm": "ERM", "steps": 3, "batch_size": 4}


@pytest.fixture(autouse=True)
def _forget_compiled():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def ready(spec):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        task = toy_task(inputs=IMAGE)
        return parse(spec).setup(task, lambda params: torch.optim.Adam(params, lr=1e-2)).double()


def trained(algorithm):
    for t in range(3):
        train_step(algorithm, toy_batches(t, inputs=IMAGE), record=t == 1)
    return {name: p.detach() for name, p in algorithm.named_parameters()}


@pytest.mark.filterwarnings(
    "ignore::dspreg.errors.Notice", "ignore:The .grad attribute"
)  # torch's, of what ARM feeds it
@pytest.mark.parametrize("spec", [*(name for name in algorithms() if name not in REFUSED), *FURTHER])
def test_a_compiled_method_takes_the_same_steps(spec):
    compiled, graphs, calls = ready(spec), [], []

    def backend(graph, _inputs):
        graphs.append(graph)
        return lambda *values: (calls.append(1), graph.forward(*values))[1]

    compile_network(compiled.net, backend)
    require_compilable(compiled.layers())
    ours, theirs = trained(compiled), trained(ready(spec))
    assert len(graphs) >= 1  # it was compiled, and what was compiled took the steps
    assert len(calls) >= 3
    assert list(ours) == list(theirs)
    for name, value in ours.items():
        assert torch.allclose(value, theirs[name], rtol=1e-9, atol=1e-12), name
    assert not any("_orig_mod" in name for name in compiled.state_dict())


@pytest.mark.parametrize("spec", [*sorted(REFUSED), "DSPReg(engine='exact')", "DSPReg(engine='gauss_newton')+SAM"])
def test_what_looks_into_the_network_is_refused(spec):
    algorithm = ready(spec)
    with pytest.raises(ConfigError, match=r"--compile: .*Leave --compile out"):  # noqa: PT012
        require_compilable(algorithm.layers())
        compile_network(algorithm.net)


def test_a_penalty_in_half_precision_is_refused():
    layers = list(parse("DSPReg(engine='lookahead')").layers())
    require_compilable(layers)
    with pytest.raises(ConfigError, match="--precision bf16 would round the penalty of DSPReg"):
        require_compilable(layers, "bf16")
    require_compilable(parse("ERM").layers(), "bf16")


def test_an_evaluation_is_not_compiled():
    algorithm, calls = ready("ERM"), []
    compile_network(algorithm.net, lambda graph, _: lambda *values: (calls.append(1), graph.forward(*values))[1])
    algorithm.net.eval()
    algorithm.predict(toy_batches(0, inputs=IMAGE)[0].x)
    assert not calls
    algorithm.net.train()
    algorithm.predict(toy_batches(0, inputs=IMAGE)[0].x)
    assert len(calls) == 1


def test_the_command_refuses_before_there_is_a_run(tmp_path, capsys):
    out = tmp_path / "run"
    assert main(["train", "--dataset", "digits", "--target", "print", "--compile", "--out", str(out)]) == 2
    said = capsys.readouterr().err
    assert "finite_difference" in said
    assert "engine='lookahead'" in said
    assert not out.exists()
    sweep = ["sweep", "--dataset", "digits", "--algorithms", "ERM", "DSPReg", "--draws", "1", "--compile"]
    assert main([*sweep, "--store", str(out)]) == 2
    assert not out.exists()


def test_without_a_compiler_it_says_so(monkeypatch):
    require_compiler.cache_clear()
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ResourceError, match=r"needs a C\+\+ compiler.*install g\+\+.*Leave --compile out"):
        require_compiler("cpu")
    monkeypatch.setattr(shutil, "which", lambda name: name)
    monkeypatch.setattr(compiling, "_add_one", lambda x: x.no_such_thing())
    with pytest.raises(ResourceError, match="does not work here"):
        require_compiler("cpu")
    require_compiler.cache_clear()


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")
@pytest.mark.filterwarnings("ignore")  # torch's own, of what it compiles with
def test_a_run_is_the_same_to_rounding_and_says_that_it_was_compiled(tmp_path):
    """With torch's own compiler, stopped after a step and resumed."""
    how = {"device": "cpu", "threads": 1}
    plain, compiled = Execution(**how), Execution(compile=True, **how)
    steps = []

    class Steps(Callback):
        def on_step_end(self, step, log):
            steps.append(step)

    def stop():
        if steps == [0, 1]:
            raise Preempted("enough")

    with pytest.raises(Preempted):
        train(CONFIG, compiled, tmp_path / "compiled", pause=stop, callbacks=[Steps()])
    with pytest.raises(ConfigError, match=r"Restore the environment \(--compile\)"):
        train(CONFIG, plain, tmp_path / "compiled")
    train(CONFIG, compiled, tmp_path / "compiled")
    train(CONFIG, compiled, tmp_path / "again")
    train(CONFIG, plain, tmp_path / "plain")
    ours, again, theirs = (load_file(tmp_path / name / "last.safetensors") for name in ("compiled", "again", "plain"))
    assert list(ours) == list(theirs)
    assert all(torch.equal(value, again[name]) for name, value in ours.items())  # also where it was resumed
    for name, value in theirs.items():
        if value.is_floating_point():
            assert torch.allclose(ours[name], value, rtol=1e-3, atol=1e-5), name
    about = [json.loads((tmp_path / name / "run.json").read_text())["environment"] for name in ("compiled", "plain")]
    assert [each.get("compile") for each in about] == [True, None]
    assert "compile" not in environment(plain)
