"""Which parameters move: compared to the bit, over whole steps and whole runs."""

import json
import re
from dataclasses import replace

import pytest
import timm
import torch
from safetensors.torch import load_file

import dspreg
from dspreg.config.trained_part import TrainedPart
from dspreg.errors import ConfigError, IntegrityError, Preempted
from dspreg.inference.export import export
from dspreg.inference.soup_members import read_member
from dspreg.networks import make_backbone
from dspreg.runs.folder import RunFolder
from dspreg.training import train, train_step
from dspreg.training.experiment import prepare_experiment
from dspreg.training.trained_part import entry_masks, last_blocks, layer_groups
from dspreg.vectors import ParamVector
from helpers import tiny

pytestmark = pytest.mark.filterwarnings("ignore::dspreg.Notice")
VIT = {"model": "test_vit", "image_size": 32, "steps": 5, "evaluate_every": 2, "augment": False, "frozen_bn": True}
peft = pytest.importorskip("peft", reason="adapters need peft: pip install 'dspreg[lora]'")
DSP = "DSPReg(weight=0.05, refresh_steps=2, measure_batches=1)"


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return tiny.make_images(tmp_path_factory.mktemp("images") / "woods")


@pytest.fixture(scope="module")
def profile(images, tmp_path_factory):
    """c of the network that all of these runs start with."""
    out = tmp_path_factory.mktemp("profiles") / "run"
    settings = tiny.settings(images, **VIT | {"steps": 1, "algorithm": "ERM"})
    train(settings, tiny.execution(profile="always"), out)
    return out / "profiles/start.safetensors"


def settings(images, profile=None, **changes):
    given = {"algorithm": "ERM", "optimizer": "adamw", "weight_decay": 0.1, "dropout": 0.0, **VIT, **changes}
    if given.get("train", "").startswith("mask"):
        given["train"] = given["train"].replace("FILE", str(profile))
    return tiny.settings(images, **given)


def started(given):
    experiment = prepare_experiment(given, tiny.execution())
    return experiment, experiment.algorithm()


def batches(experiment, t):
    read = experiment.steps()[t]
    return [dspreg.Batch(experiment.transform("none").normalise(x), y, d) for d, (x, y) in enumerate(read)]


PARTS = ["head", "last:1", "last:3", "lora(r=2)", "lora(r=2, modules='*.qkv')", "mask:FILE",
         "mask:FILE(which='most', quantile=0.8)", "mask:FILE(control='shuffled')"]  # fmt: skip


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("spec", ["ERM", f"CORAL+{DSP}+EMA(decay=0.5)", "SAM+Fish", "GGAL"])
def test_what_is_frozen_stays_to_the_bit_and_the_rest_moves(images, profile, spec, part):
    experiment, stack = started(settings(images, profile, train=part, algorithm=spec))
    before = {name: t.clone() for name, t in stack.net.state_dict().items()}
    masks = dict(stack.stack.masks)
    for t in range(3):
        train_step(stack, batches(experiment, t))
    moved = set()
    for name, t in stack.net.state_dict().items():
        same = (t == before[name]) | (t.isnan() & before[name].isnan())
        if name in masks:
            assert bool(same[~masks[name]].all()), name
            moved |= {name} if not bool(same.all()) else set()
        elif not torch.equal(t, before[name]):
            moved.add(name)
    kind = part.partition(":")[0].partition("(")[0]
    blocks = {int(found[1]) for name in moved if (found := re.search(r"blocks\.(\d)", name))}
    assert "classifier.weight" in moved
    if kind == "head":
        assert moved == {"classifier.weight", "classifier.bias"}
    if kind == "last":
        assert blocks == set(range(6 - int(part[-1]), 6))
        assert "featurizer.model.norm.weight" in moved
        assert not any("embed" in name or "token" in name for name in moved)
    if kind == "lora":
        assert all("lora_" in name or name.startswith("classifier") for name in moved)
        assert any("lora_A" in name for name in moved)
        assert all(".qkv." in name for name in moved if "qkv" in part and "lora" in name)
    if kind == "mask":
        assert blocks == set(range(6))
        share = sum(int(m.sum()) for m in masks.values()) / sum(m.numel() for m in masks.values())
        assert share == pytest.approx(0.2 if "most" in part else 0.5, abs=0.01)


def test_the_last_blocks_of_networks_are_those_that_one_would_name():
    def blocks(name, count):
        featurizer = make_backbone(name, weights="none", image_size=64).make()
        found = last_blocks(featurizer, count, name)
        assert found <= dict(featurizer.named_parameters()).keys()
        return {re.sub(r"(blocks|layer|stages)(\.?\d+)(?:\.(?:blocks\.)?(\d+))?\..*", r"\1\2.\3", n[6:]) for n in found}

    assert blocks("test_vit", 2) == {"blocks.4.", "blocks.5.", "norm.weight", "norm.bias"}
    assert blocks("resnet18", 3) == {"layer3.1", "layer4.0", "layer4.1"}
    assert blocks("test_efficientnet", 1) == {"blocks.4.0", "conv_head.weight", "bn2.weight", "bn2.bias"}
    assert blocks("test_convnext", 1) >= {"head.norm.weight", "head.norm.bias"}
    with pytest.raises(ConfigError, match="last:9: resnet18 has 8 blocks"):
        last_blocks(make_backbone("resnet18", weights="none", image_size=64).make(), 9, "resnet18")
    with pytest.raises(ConfigError, match="small-cnn has no groups of layers"):
        layer_groups(make_backbone("small-cnn").make(), "small-cnn")


# Adapters.


def test_adapters_start_as_nothing_and_the_same_for_all_methods_of_a_trial(images):
    def adapters(**changes):
        _, stack = started(settings(images, train="lora(r=3)", **changes))
        return {n: p.detach().clone() for n, p in stack.net.named_parameters() if "lora_" in n}, stack

    (ours, stack), (others, _) = adapters(), adapters(algorithm=f"CORAL+{DSP}")
    assert ours.keys() == others.keys()
    assert len(ours) == 2 * 6 * 4  # qkv, proj and two of the MLP in each of six blocks
    assert all(torch.equal(ours[name], others[name]) for name in ours)
    assert all(bool(p.any()) == ("lora_A" in name) for name, p in ours.items())
    another, _ = adapters(trial=1)
    assert not any(torch.equal(ours[name], another[name]) for name in ours if "lora_A" in name)
    _, plain = started(settings(images))
    x = torch.randn(3, 3, 32, 32)
    assert torch.equal(stack.eval().predict(x), plain.eval().predict(x))


@pytest.fixture(scope="module")
def adapted(images, tmp_path_factory):
    """A run with adapters, c and averaged weights."""
    out = tmp_path_factory.mktemp("runs") / "lora"
    given = settings(images, train="lora(r=4, alpha=2)", algorithm=f"{DSP}+EMA(decay=0.5)", schedule="cosine")
    train(given, tiny.execution(), out)
    return given, out


def test_a_model_file_with_adapters_is_the_network_with_the_product_added(adapted):
    """By hand: a plain network of timm, each weight W + alpha/r · B A."""
    _, out = adapted
    model, _ = dspreg.load(out)
    state = {n.removeprefix("featurizer.model."): t for n, t in model.algorithm.net.state_dict().items()}
    plain = timm.create_model("test_vit", num_classes=0, img_size=32)
    weights = {}
    for name, value in state.items():
        if "lora_" in name or name.startswith("classifier"):
            continue
        bare = name.replace(".base_layer.", ".")
        layer = name.removesuffix(".base_layer.weight")
        if layer != name:
            a, b = state[f"{layer}.lora_A.default.weight"], state[f"{layer}.lora_B.default.weight"]
            assert b.any()
            value = value + 2 / 4 * b @ a
        weights[bare] = value
    plain.load_state_dict(weights)
    x = torch.randn(5, 3, 32, 32)
    with torch.no_grad():
        wanted = plain.eval()(x) @ state["classifier.weight"].T + state["classifier.bias"]
        torch.testing.assert_close(model(x), wanted, rtol=1e-4, atol=1e-5)


def test_exported_adapters_are_merged(adapted, tmp_path):
    _, out = adapted
    model, _ = dspreg.load(out)
    file = export(out, "safetensors", tmp_path / "plain.safetensors").path
    tensors = load_file(file)
    assert not any("lora" in name or "base_layer" in name for name in tensors)
    plain = timm.create_model("test_vit", num_classes=3, img_size=32)
    plain.load_state_dict(tensors)
    x = torch.randn(5, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(plain.eval()(x), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("spec", [f"{DSP}+EMA(decay=0.5)", "SWAD(n_converge=1, n_tolerance=2)", "CORAL+SWA(start=1)"])
def test_a_run_with_adapters_that_is_stopped_ends_in_the_same_bits(images, tmp_path, spec):
    given = settings(images, train="lora(r=2)", algorithm=spec, steps=7, dropout=0.1)
    train(given, tiny.execution(), tmp_path / "once")
    for moment in (0, 3, 4):
        with pytest.raises(Preempted):
            train(given, tiny.execution(), tmp_path / "stopped", pause=tiny.stop_at(moment))
    train(given, tiny.execution(), tmp_path / "stopped")
    assert tiny.ending(tmp_path / "stopped") == tiny.ending(tmp_path / "once")


def test_the_frozen_weights_in_the_model_file_are_those_of_the_start(adapted, images):
    given, out = adapted
    _, stack = started(given)
    start = {name: t for name, t in stack.net.state_dict().items() if "lora_" not in name}
    model, _ = dspreg.load(out)
    end = model.algorithm.net.state_dict()
    frozen = [name for name in start if name.startswith("featurizer")]
    assert len(frozen) > 50
    assert all(torch.equal(start[name], end[name]) for name in frozen)


def test_adapters_are_not_averaged_over_runs(adapted):
    with pytest.raises(ConfigError, match="averaging adapters is not averaging the weights"):
        read_member(adapted[1])


def test_a_model_file_that_asks_for_absurd_adapters_is_refused(adapted, tmp_path):
    from dspreg.training.stored_model import check_description, read_model_file

    how, _ = read_model_file(adapted[1] / "selected.safetensors")
    assert how["train"] == "lora(r=4, alpha=2.0)"
    for train_, said in (("lora(r=99999)", "wanted r from 1"), ("head", "wanted all or lora"), (3, "wanted text")):
        with pytest.raises(IntegrityError, match=said):
            check_description({**how, "train": train_}, "a file")


def test_without_peft_it_says_what_to_install(images, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ConfigError, match="pip install 'dspreg\\[lora\\]'"):
        started(settings(images, train="lora"))


# Masks.


def test_a_mask_is_where_c_is_below_its_quantile_in_the_whole_backbone(images, profile):
    c = dspreg.Profile.load(profile).c
    flat = torch.cat([t.flatten() for name, t in c.items() if not name.startswith("classifier")])
    wanted = flat.sort().values[round(0.3 * (len(flat) - 1) + 0.4999)]
    for which in ("least", "most"):
        _, stack = started(settings(images, profile, train=f"mask:FILE(which='{which}', quantile=0.3)"))
        masks = stack.stack.masks
        assert masks.keys() == {n for n, _ in stack.net.named_parameters() if n.startswith("featurizer")}
        for name, mask in masks.items():
            assert torch.equal(mask, c[name] < wanted if which == "least" else c[name] >= wanted), name


def test_the_controls_train_as_many_entries_of_each_tensor_elsewhere(images, profile):
    found = {}
    for control in ("none", "shuffled", "matched"):
        _, stack = started(settings(images, profile, train=f"mask:FILE(control='{control}')"))
        found[control] = stack.stack.masks
    for control in ("shuffled", "matched"):
        pairs = [(found["none"][name], mask) for name, mask in found[control].items()]
        assert all(int(a.sum()) == int(b.sum()) for a, b in pairs)
        assert sum(not torch.equal(a, b) for a, b in pairs) > len(pairs) / 2
    _, other = started(settings(images, profile, train="mask:FILE(control='shuffled')", trial=1))
    assert any(not torch.equal(found["shuffled"][n], m) for n, m in other.stack.masks.items())


def test_a_profile_of_the_bare_network_fits_and_one_of_another_does_not(images, profile):
    given, _ = prepare_experiment(settings(images), tiny.execution()), None
    net, found = given.algorithm().net, dspreg.Profile.load(profile)
    part = TrainedPart.parse("mask:f")

    def renamed(vector):
        return ParamVector((n.removeprefix("featurizer.model."), t) for n, t in vector.items())

    bare = replace(found, c=renamed(found.c), mean=renamed(found.mean))
    ours, theirs = (entry_masks(each, part, net, ("key",)) for each in (found, bare))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    smaller = ParamVector((n, t) for n, t in found.c.items() if "blocks.3.mlp.fc1" not in n)
    with pytest.raises(ConfigError, match=r"no such parameter where the network has featurizer.model.blocks.3.mlp.fc1"):
        entry_masks(replace(found, c=smaller), part, net, ("key",))
    level = found.c.map(torch.ones_like)
    with pytest.raises(ConfigError, match="so that none is"):
        entry_masks(replace(found, c=level), part, net, ("key",))


def test_a_profile_that_has_seen_the_target_is_refused(images, profile):
    with pytest.raises(ConfigError, match="the profile was measured on ash, which is held out"):
        prepare_experiment(settings(images, profile, train="mask:FILE", targets=("ash",)), tiny.execution())


def test_a_record_names_the_file_by_its_contents(images, profile, tmp_path):
    given = settings(images, profile, train="mask:FILE(quantile=0.3)", steps=2)
    train(given, tiny.execution(), tmp_path / "run")
    described = json.loads((tmp_path / "run/run.json").read_text())
    import hashlib

    sha = hashlib.sha256(profile.read_bytes()).hexdigest()[:16]
    assert described["settings"]["train"] == f"mask:sha256={sha}(quantile=0.3)"
    assert described["where"]["train"] == str(profile)
    assert RunFolder(tmp_path / "run").result() is not None
    assert f"trained: mask:{profile.name}(quantile=0.3)" in (tmp_path / "run/README.md").read_text().replace("\\", "")
    copy = tmp_path / "copy.safetensors"
    copy.write_bytes(profile.read_bytes())  # elsewhere it is the same run
    again = train(given | {"train": f"mask:{copy}(quantile=0.3)"}, tiny.execution(), tmp_path / "run")
    assert again == RunFolder(tmp_path / "run").result()


def test_a_masked_run_that_is_stopped_ends_in_the_same_bits(images, profile, tmp_path):
    given = settings(images, profile, train="mask:FILE", algorithm=f"{DSP}+EMA(decay=0.5)", steps=6)
    train(given, tiny.execution(), tmp_path / "once")
    with pytest.raises(Preempted):
        train(given, tiny.execution(), tmp_path / "stopped", pause=tiny.stop_at(4))
    train(given, tiny.execution(), tmp_path / "stopped")
    assert tiny.ending(tmp_path / "stopped") == tiny.ending(tmp_path / "once")
