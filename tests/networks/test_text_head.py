"""Text heads: open_clip's own zero-shot logits, before any step; and files that are no heads."""

import json

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from dspreg.cli import main
from dspreg.config.train_config import Execution
from dspreg.errors import ConfigError, IntegrityError
from dspreg.networks import Network, make_backbone
from dspreg.networks.text_head import FORMAT, TextHead, read_text_head
from dspreg.training.experiment import prepare_experiment

open_clip = pytest.importorskip("open_clip", reason="text heads need open_clip: pip install 'dspreg[clip]'")

from dspreg.networks.clip_texts import make_text_head  # noqa: E402
from helpers import tiny, tiny_clip  # noqa: E402

CLASSES = ("fox", "cat", "arctic_fox", "dog")
TEMPLATES = ("a photo of a {}", "a drawing of the {}.", "{}")
pytestmark = pytest.mark.filterwarnings("ignore::dspreg.Notice")


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clip") / "tiny"
    return folder, tiny_clip.make_clip(folder)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return tiny.make_images(tmp_path_factory.mktemp("images") / "woods")


def zero_shot(model, x, classes, templates):
    """As open_clip's documentation has it."""
    tokenizer = open_clip.get_tokenizer("ViT-B-32")
    with torch.no_grad():
        columns = []
        for name in classes:
            texts = model.encode_text(tokenizer([t.format(name.replace("_", " ")) for t in templates]), normalize=True)
            columns.append(F.normalize(texts.mean(dim=0), dim=0))
        return model.logit_scale.exp() * model.encode_image(x, normalize=True) @ torch.stack(columns, dim=1)


@pytest.mark.parametrize("templates", [TEMPLATES[:1], TEMPLATES])
def test_a_network_with_its_text_head_has_open_clips_zero_shot_logits(clip, images, tmp_path, templates):
    folder, model = clip
    make_text_head(str(folder), CLASSES, templates).save(tmp_path / "head.safetensors")
    settings = tiny.settings(
        images, algorithm="CORAL", model="tiny_clip_test.random", weights=str(folder / "image.safetensors"),
        head=str(tmp_path / "head.safetensors"), image_size=32, frozen_bn=True,
    )  # fmt: skip
    experiment = prepare_experiment(settings, tiny.execution())
    assert (experiment.backbone.mean, experiment.backbone.std) == (tiny_clip.MEAN, tiny_clip.STD)
    stack = experiment.algorithm().eval()
    assert stack.net.featurizer.width == tiny_clip.WIDTH
    x = torch.randn(7, 3, 32, 32)
    ours = stack.predict(x)
    wanted = zero_shot(model, x, tiny.CLASSES, templates)  # the data set's classes, in its order
    torch.testing.assert_close(ours, wanted, rtol=1e-4, atol=1e-4)
    assert wanted.std() > 0.1
    features = stack.net.featurizer(x)
    torch.testing.assert_close(features.norm(dim=1), torch.ones(7))


def test_the_file_says_all_that_was_given(clip, tmp_path):
    folder, model = clip
    head = make_text_head(str(folder), CLASSES, TEMPLATES)
    sha = head.save(tmp_path / "head.safetensors")
    read = read_text_head(tmp_path / "head.safetensors")
    assert read.sha256 == sha
    assert (read.classes, read.logit_scale) == (CLASSES, pytest.approx(float(model.logit_scale.detach().exp())))
    assert torch.equal(read.weight, head.weight)
    assert read.about["templates"] == list(TEMPLATES)
    assert read.about["model"] == "tiny"
    assert str(tmp_path) not in (tmp_path / "head.safetensors").read_bytes().decode("latin1")
    again = make_text_head(str(folder), CLASSES, TEMPLATES).save(tmp_path / "again.safetensors")
    assert again == sha


def test_a_head_of_other_classes_or_another_width_is_refused(clip, tmp_path):
    head = make_text_head(str(clip[0]), CLASSES)
    with pytest.raises(ConfigError, match="the head has no row of wolf, owl; it is of fox, cat, arctic_fox, dog"):
        head.rows(("fox", "wolf", "owl"))
    featurizer = make_backbone("test_vit", weights="none", image_size=32).make()
    net = Network(featurizer, torch.nn.Linear(featurizer.width, 4))
    with pytest.raises(ConfigError, match="embeddings of 16 numbers, made by tiny, and this network has 64 features"):
        head.start(net, CLASSES)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"classes": ()}, "wanted at least one, each once"),
        ({"classes": ("cat", "cat")}, "wanted at least one, each once"),
        ({"templates": ()}, "no template"),
        ({"templates": ("a photo",)}, "in the place of the class"),
        ({"templates": ("{} {}",)}, "in the place of the class"),
        ({"templates": ("a {} {name}",)}, "in the place of the class"),
        ({"pretrained": "openai"}, "leave --pretrained out"),
        ({"model": "ViT-B-17"}, "open_clip has no network 'ViT-B-17'"),
        ({"model": "ViT-B-16"}, "which weights of ViT-B-16"),
        ({"model": "ViT-B-16", "pretrained": "openaj"}, "has no weights 'openaj'"),
        ({"model": "ViT-B-16", "pretrained": "model.pt"}, "wanted a safetensors file"),
    ],
)
def test_what_can_t_be_made_is_refused(clip, changes, said):
    with pytest.raises(ConfigError, match=said):
        make_text_head(**{"model": str(clip[0]), "classes": CLASSES, **changes})


def test_weights_that_are_not_those_of_the_configuration_are_refused(clip, tmp_path):
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "open_clip_config.json").write_text((clip[0] / "open_clip_config.json").read_text())
    with pytest.raises(ConfigError, match=r"has no open_clip_model.safetensors"):
        make_text_head(str(folder), CLASSES)
    (folder / "open_clip_model.safetensors").write_bytes((clip[0] / "image.safetensors").read_bytes())
    with pytest.raises(IntegrityError, match="open_clip can't make"):
        make_text_head(str(folder), CLASSES)


def test_without_open_clip_it_says_what_to_install(clip, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "open_clip", None)
    with pytest.raises(ConfigError, match="pip install 'dspreg\\[clip\\]'"):
        make_text_head(str(clip[0]), CLASSES)


UNIT = F.normalize(torch.randn(2, 4), dim=1)
GOOD = {"weight": UNIT, "logit_scale": torch.tensor(100.0)}


@pytest.mark.parametrize(
    ("tensors", "about", "said"),
    [
        (GOOD, None, "metadata"),
        (GOOD, {"classes": ["a"]}, "one row of weights for each of 1"),
        (GOOD, {"classes": ["a", "a"]}, "a list of different classes"),
        (GOOD, {"classes": "ab"}, "a list of different classes"),
        (GOOD | {"more": UNIT.clone()}, {"classes": ["a", "b"]}, "the tensors weight and logit_scale alone"),
        (GOOD | {"weight": UNIT.double()}, {"classes": ["a", "b"]}, "tensors of float32"),
        (GOOD | {"weight": 2 * UNIT}, {"classes": ["a", "b"]}, "rows of length 1"),
        (GOOD | {"weight": UNIT * torch.nan}, {"classes": ["a", "b"]}, "rows of length 1"),
        (GOOD | {"logit_scale": torch.tensor(-1.0)}, {"classes": ["a", "b"]}, "a logit_scale above 0"),
        (GOOD | {"logit_scale": torch.tensor(torch.inf)}, {"classes": ["a", "b"]}, "a logit_scale above 0"),
    ],
)
def test_a_file_that_is_no_head_is_refused(tmp_path, tensors, about, said):
    save_file(tensors, tmp_path / "h.safetensors", {} if about is None else {FORMAT: json.dumps(about)})
    with pytest.raises(IntegrityError, match=said):
        read_text_head(tmp_path / "h.safetensors")


def test_a_damaged_file_is_refused(tmp_path):
    TextHead(("a", "b"), UNIT, 10.0, {}).save(tmp_path / "h.safetensors")
    data = (tmp_path / "h.safetensors").read_bytes()
    for broken in (b"", data[:20], data[:-3], b"\x80\x02" + data):
        (tmp_path / "h.safetensors").write_bytes(broken)
        with pytest.raises(IntegrityError, match="is no head"):
            read_text_head(tmp_path / "h.safetensors")
    with pytest.raises(ConfigError, match="dspreg head make"):
        read_text_head("text")


# The features that a transformer has.


def test_tokens_are_chosen_by_name(clip):
    """Against timm's own `forward_features`."""
    x = torch.randn(3, 3, 32, 32)
    for name in ("test_vit", "test_vit2"):
        nets = {f: make_backbone(name, weights="none", image_size=32, features=f).make().eval() for f in
                ("default", "mean")}  # fmt: skip
        nets["mean"].load_state_dict(nets["default"].state_dict())
        model = nets["default"].model
        tokens = model.forward_features(x)
        wanted = model.fc_norm(tokens[:, model.num_prefix_tokens :].mean(1))
        torch.testing.assert_close(nets["mean"](x), wanted, rtol=1e-5, atol=1e-6)
    made = make_backbone("test_vit", weights="none", image_size=32, features="token").make().eval()
    torch.testing.assert_close(made(x), made.model.forward_features(x)[:, 0])


@pytest.mark.parametrize(
    ("name", "features", "said"),
    [
        ("resnet18", "mean", "has no tokens, but maps"),
        ("test_convnext", "token", "has no tokens, but maps"),
        ("vit_base_patch16_siglip_224", "mean", "pools its tokens by attention"),
        ("vit_relpos_small_patch16_224", "token", "has patch tokens and no class token"),
        ("small-cnn", "mean", "small-cnn has no tokens"),
    ],
)
def test_features_that_a_network_has_not_are_refused(name, features, said):
    with pytest.raises(ConfigError, match=said), torch.device("meta"):
        make_backbone(name, weights="none", image_size=28 if name == "small-cnn" else 224, features=features)


# The command, and a run with it.


def test_from_the_command_to_a_trained_run(clip, images, tmp_path, capsys):
    folder, _ = clip
    head = tmp_path / "head.safetensors"
    made = ["head", "make", "--model", str(folder), "--dataset", f"folder:{images}", "--out", str(head)]
    assert main(made) == 0
    said = capsys.readouterr().out
    assert "3 classes × 16 numbers" in said
    assert read_text_head(head).sha256 in said
    train = [
        "train", "--dataset", f"folder:{images}", "--target", "elm", "--algorithm", "ERM", "--model",
        "tiny_clip_test.random", "--weights", str(folder / "image.safetensors"), "--image-size", "32", "--steps", "3",
        "--batch-size", "4", "--lr", "1e-4", "--head", str(head), "--train", "last:1", "--threads", "1",
        "--workers", "0", "--cache", "none", "--out", str(tmp_path / "run"),
    ]  # fmt: skip
    assert main(train) == 0
    described = json.loads((tmp_path / "run/run.json").read_text())
    assert described["settings"]["features"] == "embedding"
    assert described["settings"]["head"] == f"sha256={read_text_head(head).sha256[:16]}"
    assert described["where"]["head"] == str(head)
    assert main(["evaluate", str(tmp_path / "run")]) == 0
    for format_, code in (("torch.export", 0), ("safetensors", 2)):
        assert main(["export", str(tmp_path / "run"), "--format", format_]) == code
    assert "features=embedding" in capsys.readouterr().err
    soup = ["soup", str(tmp_path / "run"), "--toward", "start", "--alpha", "0.5", "--out", str(tmp_path / "half")]
    assert main(soup) == 0  # WiSE-FT, from the zero-shot network
    head.unlink()
    capsys.readouterr()
    assert main([*soup[:-1], str(tmp_path / "other")]) == 2
    assert "there is no file" in capsys.readouterr().err


def test_what_is_between_the_start_and_the_run_is_between_zero_shot_and_the_run(clip, images, tmp_path):
    from dspreg.inference.soup_members import read_member, tensors_at_start
    from dspreg.training import train

    folder, model = clip
    make_text_head(str(folder), tiny.CLASSES).save(tmp_path / "h.safetensors")
    settings = tiny.settings(
        images, algorithm="ERM", model="tiny_clip_test.random", weights=str(folder / "image.safetensors"),
        head=str(tmp_path / "h.safetensors"), image_size=32, frozen_bn=True, steps=2,
    )  # fmt: skip
    train(settings, Execution(threads=1, workers=0, cache="none", profile="never"), tmp_path / "run")
    start = tensors_at_start(read_member(tmp_path / "run"))
    stack = prepare_experiment(settings, tiny.execution()).algorithm()
    stack.net.load_state_dict(start)
    x = torch.randn(4, 3, 32, 32)
    wanted = zero_shot(model, x, tiny.CLASSES, TEMPLATES[:1])
    torch.testing.assert_close(stack.eval().predict(x), wanted, rtol=1e-4, atol=1e-4)
