"""Runs of methods that adapt to the batch they predict on: saved, loaded, evaluated and exported like any other."""

import pytest
import torch

import dspreg
from dspreg.data.transforms import Transform
from dspreg.errors import ConfigError
from dspreg.inference.evaluate_run import _parts, data_of, evaluate_run
from dspreg.inference.export import export
from dspreg.inference.predict import image_files, predict_files
from dspreg.protocol.description import RunDescription
from dspreg.runs.folder import RunFolder
from helpers.small_runs import DOMAINS, photos, trained

SPECS = {"ARM": "ARM(width=4)", "MTL": "MTL", "MixStyle": "MixStyle", "over": "ARM(width=4)+DSPReg(refresh_steps=1)"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return photos(tmp_path_factory.mktemp("data") / "photos")


@pytest.fixture(scope="module")
def runs(folder, tmp_path_factory):
    place = tmp_path_factory.mktemp("runs")
    return {name: trained(folder, place / name, algorithm=spec, steps=3) for name, spec in SPECS.items()}


@pytest.mark.parametrize("name", SPECS)
def test_a_saved_run_predicts_and_is_evaluated(runs, folder, name):
    model, transform = dspreg.load(runs[name])
    files = image_files([folder / "noon"])
    together = predict_files(model, transform, files)
    alone = predict_files(model, transform, files, batch=1)
    same = [a.probabilities == pytest.approx(b.probabilities, abs=1e-5) for a, b in zip(together, alone, strict=True)]
    assert all(same) if name == "MixStyle" else not any(same)  # the others see the batch
    assert {judged.domain for judged in evaluate_run(runs[name]).domains} == set(DOMAINS)


@pytest.mark.parametrize("name", ["ARM", "MTL"])
def test_weights_alone_are_not_the_model_but_a_program_is(runs, name, tmp_path):
    with pytest.raises(ConfigError, match=rf"{name}.* predicts by more than its network.*use --format torch\.export"):
        export(runs[name], "safetensors", tmp_path / "weights.safetensors")
    made = export(runs[name], "torch.export", tmp_path / "program.pt2")
    x = torch.rand(7, 3, 28, 28)
    with torch.no_grad():
        expected = dspreg.load(runs[name])[0](x)
    found = torch.export.load(made.path).module()(x)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_mix_style_leaves_plain_weights(runs, tmp_path):
    assert export(runs["MixStyle"], "safetensors", tmp_path / "weights.safetensors").difference <= 1e-6


def test_classes_of_an_unseen_domain_are_shuffled(runs, folder):
    """Images of a folder stand class by class; a context of one class alone would be of no domain."""
    described = RunDescription.from_json(RunFolder(runs["ARM"]).description())
    data = data_of(described, None, None, None)
    ((part, *_),) = _parts(data, "noon", described, Transform(28, (0.5,) * 3, (0.5,) * 3))
    assert sorted(part.positions) == list(range(36))
    labels = [part.images[i][1] for i in part.positions]
    assert set(labels[:12]) == {0, 1, 2}
