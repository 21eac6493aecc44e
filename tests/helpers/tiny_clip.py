"""A tiny random CLIP network: open_clip's in a folder, and its image tower as timm has it."""

import json
from functools import partial

import torch
from safetensors.torch import save_file
from timm.models import generate_default_cfgs, register_model
from timm.models.vision_transformer import VisionTransformer, checkpoint_filter_fn
from torch import nn

from dspreg.randomness import seeded

NAME, WIDTH, SIZE = "tiny_clip_test", 16, 32
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
CONFIG = {
    "embed_dim": WIDTH,
    "vision_cfg": {"image_size": SIZE, "layers": 2, "width": 32, "head_width": 16, "patch_size": 8},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2},
}
default_cfgs = generate_default_cfgs(
    {
        f"{NAME}.random": {
            "num_classes": WIDTH, "input_size": (3, SIZE, SIZE), "pool_size": None, "mean": MEAN, "std": STD,
            "classifier": "head", "first_conv": "patch_embed.proj", "interpolation": "bicubic",
            "fixed_input_size": True,
        }
    }
)  # fmt: skip


@register_model
def tiny_clip_test(pretrained=False, **options):
    from timm.models import build_model_with_cfg

    options = {"num_classes": WIDTH, **options}
    given = {"img_size": SIZE, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2, "pre_norm": True}
    given["norm_layer"] = partial(nn.LayerNorm, eps=1e-5)
    options.pop("pretrained_cfg", None)
    return build_model_with_cfg(VisionTransformer, NAME, pretrained, **given, **options)


def make_clip(folder):
    """A folder that open_clip reads, and timm's weights of the same image tower in `image.safetensors`."""
    import open_clip

    folder.mkdir(parents=True)
    with seeded("tiny clip"):
        model = open_clip.model.CLIP(**CONFIG)
    with torch.no_grad():
        for p in model.parameters():  # of its init alone, all texts are nearly the same
            if p.ndim > 1:
                p.mul_(3)
    (folder / "open_clip_config.json").write_text(
        json.dumps({"model_cfg": CONFIG, "preprocess_cfg": {"mean": MEAN, "std": STD}})
    )
    save_file({n: t.contiguous() for n, t in model.state_dict().items()}, folder / "open_clip_model.safetensors")
    image = {n: t for n, t in model.state_dict().items() if n.startswith("visual.")}
    converted = checkpoint_filter_fn(image, tiny_clip_test())
    save_file({n: t.clone().contiguous() for n, t in converted.items()}, folder / "image.safetensors")
    return model.eval()
