"""Profiles from names: of a network on a folder, against a loop written here; of a run, against its own."""

import sys
import types

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import dspreg
from dspreg.config.measure_config import MeasureConfig
from dspreg.config.train_config import Execution
from dspreg.errors import ConfigError, DataError, Notice, ResourceError
from dspreg.inference.profile_run import profile_network, profile_run
from dspreg.training import train
from helpers.small_runs import photos, trained

SIZE = 8
MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])


def tiny():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE * SIZE, 4), nn.Tanh(), nn.Linear(4, 3))


@pytest.fixture(autouse=True)
def own(monkeypatch):
    module = types.ModuleType("networks_to_profile")
    module.tiny = tiny
    monkeypatch.setitem(sys.modules, "networks_to_profile", module)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return photos(tmp_path_factory.mktemp("place") / "photos", each=3)


def by_hand(folder, domains, *, reading):
    """c by plain loops over images and outputs, from the files."""
    net, s = tiny(), []
    for domain in domains:
        total, n = 0, 0
        for label, name in enumerate(("cat", "dog", "owl")):
            for path in sorted((folder / domain / name).iterdir()):
                pixels = np.asarray(Image.open(path).convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR))
                x = torch.tensor(((pixels / 255 - MEAN) / STD).transpose(2, 0, 1)[None], dtype=torch.float32)
                for value in reading(net(x), label):
                    g = torch.autograd.grad(value, list(net.parameters()), retain_graph=True)
                    total = total + torch.cat([each.flatten() for each in g]).double() ** 2
                n += 1
        s.append((total / n).numpy())
    s = np.array(s)
    return s.std(0) / s.mean(0)


@pytest.mark.parametrize(
    ("of", "reading"),
    [
        ("loss", lambda out, label: [-out.log_softmax(1)[0, label]]),
        ("output", lambda out, _label: list(out[0])),
    ],
)
@pytest.mark.parametrize("domains", [("dawn", "dusk", "noon"), ("noon", "dawn")])
def test_c_of_a_folder_is_that_of_a_plain_loop(folder, of, reading, domains):
    config = MeasureConfig(dataset=f"folder:{folder}", domains=domains, of=of, batch=4)
    found = profile_network("networks_to_profile.tiny", config, image_size=SIZE)
    assert found.domains == tuple(sorted(domains))
    wanted = by_hand(folder, sorted(domains), reading=reading)
    assert np.allclose(found.c.flat().numpy(), wanted, atol=2e-3)


def test_without_labels_the_same_images_give_the_same_c(folder, tmp_path):
    for domain in ("dawn", "dusk", "noon"):
        (tmp_path / "flat" / domain).mkdir(parents=True)
        for path in (folder / domain).rglob("*.png"):
            (tmp_path / "flat" / domain / f"{path.parent.name}{path.name}").write_bytes(path.read_bytes())
    configs = [MeasureConfig(dataset=f"folder:{place}", of="output", batch=4) for place in (folder, tmp_path / "flat")]
    one, other = (profile_network("networks_to_profile.tiny", config, image_size=SIZE) for config in configs)
    assert torch.allclose(one.c.flat(), other.c.flat(), atol=1e-5)
    with pytest.raises(DataError, match=r"no folders of classes: .*dawn.* Use --of output or --of fisher"):
        profile_network(
            "networks_to_profile.tiny", MeasureConfig(dataset=f"folder:{tmp_path / 'flat'}"), image_size=SIZE
        )


def test_images_are_drawn_by_the_seed_without_replacement(folder):
    def measured(**options):
        config = MeasureConfig(dataset=f"folder:{folder}", images=7, batch=3, **options)
        return profile_network("networks_to_profile.tiny", config, image_size=SIZE)

    one, again, other = measured(), measured(workers=1), measured(seed=1)
    assert one.settings["domains"]["dawn"] == {"batches": 3, "samples": 7}
    assert torch.equal(one.c.flat(), again.c.flat())  # however many processes read them
    assert not torch.equal(one.c.flat(), other.c.flat())
    about = one.settings["about"]
    assert about["domains"]["dawn"] == {"part": "all", "images": 9}
    assert (about["data"], about["seed"], about["image_size"]) == ("photos", 0, SIZE)
    assert str(folder) not in str(one.settings)


def test_images_are_streamed_where_there_is_no_floor(folder):
    config = MeasureConfig(dataset=f"folder:{folder}", batch=3, null=False)
    with_null, without = (
        profile_network("networks_to_profile.tiny", each, image_size=SIZE)
        for each in (MeasureConfig(dataset=f"folder:{folder}", batch=3), config)
    )
    assert without.null is None
    assert torch.equal(with_null.c.flat(), without.c.flat())


@pytest.mark.filterwarnings("ignore:only one batch")
@pytest.mark.parametrize("algorithm", ["ERM", "DSPReg(refresh_steps=2)"])
def test_the_profile_of_a_run_is_the_one_training_left(folder, tmp_path, algorithm):
    given = {
        "dataset": f"folder:{folder}", "targets": ("noon",), "algorithm": algorithm, "model": "small-cnn",
        "weights": "none", "image_size": 28, "steps": 3, "batch_size": 4, "lr": 1e-3,
    }  # fmt: skip
    train(given, Execution(threads=1, profile="always", workers=0, check_images="never"), tmp_path / "run")
    left = dspreg.Profile.load(tmp_path / "run" / "profiles" / "end.safetensors")
    found = profile_run(tmp_path / "run", MeasureConfig(), which="last")
    assert list(found.c) == list(left.c)
    for part in ("c", "null", "mean"):
        assert torch.equal(getattr(found, part).flat(), getattr(left, part).flat())
    assert {k: v for k, v in found.settings.items() if k != "about"} == left.settings
    assert found.settings["about"]["domains"]["dawn"] == {"part": "in", "images": 8}  # a fifth of nine is held out


@pytest.mark.filterwarnings("ignore:only one batch")
def test_the_variance_over_kept_models_scales_s_and_cancels_in_c(folder, tmp_path):
    given = {
        "dataset": f"folder:{folder}", "targets": ("noon",), "algorithm": "ERM", "model": "small-cnn",
        "weights": "none", "image_size": 28, "steps": 5, "evaluate_every": 2, "batch_size": 4, "lr": 1e-3,
    }  # fmt: skip
    run = tmp_path / "run"
    train(given, Execution(threads=1, keep="all", workers=0, check_images="never"), run)
    plain = profile_run(run, MeasureConfig(), which="last")
    found = profile_run(run, MeasureConfig(variance="checkpoints"), which="last")
    steps = [record["step"] for record in dspreg.load_runs(tmp_path)[0].records]
    assert found.settings["about"]["checkpoints"] == steps == [0, 2, 4]
    models = [dict(dspreg.load(run, str(step))[0].algorithm.net.named_parameters()) for step in steps]
    for name, s in found.mean.items():
        along = np.stack([m[name].detach().double().numpy() for m in models]).var(0)
        np.testing.assert_allclose(s.numpy(), plain.mean[name].double().numpy() * along, rtol=1e-4)
        moved = torch.from_numpy(along) > 0
        torch.testing.assert_close(found.c[name][moved], plain.c[name][moved], rtol=1e-5, atol=1e-6)
        assert not found.c[name][~moved].any()
    with_eps = profile_run(run, MeasureConfig(variance="checkpoints", eps=1e-6), which="last")
    assert with_eps.c.flat().mean() < 0.9 * found.c.flat().mean()


def test_a_variance_that_a_run_or_a_network_cannot_have_is_refused(folder, tmp_path):
    run = trained(folder, tmp_path / "run", steps=1)
    with pytest.raises(ConfigError, match=r"two kept models or more, and .* has 0; train with --keep all"):
        profile_run(run, MeasureConfig(variance="checkpoints"))
    config = MeasureConfig(dataset=f"folder:{folder}", variance="checkpoints")
    with pytest.raises(ConfigError, match=r"is of a run, and networks_to_profile\.tiny is a network"):
        profile_network("networks_to_profile.tiny", config, image_size=SIZE)
    with pytest.raises(ConfigError, match="wanted one of 'one', 'checkpoints'"):
        MeasureConfig(variance="two")


def test_a_run_on_other_images_measures_all_of_them_and_matches_classes_by_name(folder, tmp_path):
    run = trained(folder, tmp_path / "run", steps=1)
    other = photos(tmp_path / "other", domains=("north", "south"), classes=("owl", "cat"), each=4)
    found = profile_run(run, MeasureConfig(dataset=f"folder:{other}", batch=4))
    assert found.domains == ("north", "south")
    assert found.settings["about"]["domains"]["north"] == {"part": "all", "images": 8}
    model, transform = dspreg.load(run)
    assert model.classes == ("cat", "dog", "owl")
    by_hand = {
        domain: [
            (transform(Image.open(path).convert("RGB"))[None], torch.tensor([{"cat": 0, "owl": 2}[path.parent.name]]))
            for path in sorted((other / domain).rglob("*.png"))
        ]
        for domain in found.domains
    }
    wanted = dspreg.measure(model, by_hand, estimator="loop", null=False)
    assert torch.allclose(found.c.flat(), wanted.c.flat(), atol=1e-4)
    strange = photos(tmp_path / "strange", domains=("north", "south"), classes=("yak",), each=2)
    with pytest.raises(DataError, match="classes that the model does not know: 'yak'"):
        profile_run(run, MeasureConfig(dataset=f"folder:{strange}"))


def test_a_run_and_its_target_as_a_domain(folder, tmp_path):
    run = trained(folder, tmp_path / "run", steps=1)
    found = profile_run(run, MeasureConfig(domains=["noon", "dawn"], batch=3))
    parts = {name: d["part"] for name, d in found.settings["about"]["domains"].items()}
    assert parts == {"dawn": "in", "noon": "all"}


def test_one_domain_is_too_few(folder, tmp_path):
    with pytest.raises(ConfigError, match=r"two or more are wanted; chosen: noon. photos has dawn, dusk, noon"):
        profile_network("networks_to_profile.tiny", MeasureConfig(dataset=f"folder:{folder}", domains=["noon"]))
    alone = photos(tmp_path / "alone", domains=("dawn",), each=2)
    with pytest.raises(DataError, match="alone has dawn alone"):
        profile_network("networks_to_profile.tiny", MeasureConfig(dataset=f"folder:{alone}"))


def test_want_of_memory_is_a_resource(folder, monkeypatch):
    def full(*_arguments, **_options):
        raise RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried …")

    monkeypatch.setattr("dspreg.inference.profile_run.measure", full)
    with pytest.raises(ResourceError, match="fewer --images, a smaller --batch"):
        profile_network("networks_to_profile.tiny", MeasureConfig(dataset=f"folder:{folder}"), image_size=SIZE)


def test_many_outputs_are_told_to_be_slow(folder, monkeypatch):
    monkeypatch.setattr("dspreg.inference.profile_run.MANY", 2)
    with pytest.warns(Notice, match="a backward pass for each of 3 outputs; --of fisher takes one"):
        profile_network("small-cnn", MeasureConfig(dataset=f"folder:{folder}", of="output", batch=4), image_size=28)
