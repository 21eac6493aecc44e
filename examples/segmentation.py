"""DSP-Reg for segmentation: a loss per pixel, averaged within each sample.

    python examples/segmentation.py

Squares on noisy ground, from three cameras of different contrast; a fourth camera is never seen in training. What is
particular to segmentation is marked: `measure` wants one loss per image, so the loss of its pixels is averaged first.
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset

import dspreg

CONTRAST = {"north": 1.0, "east": 0.7, "south": 1.4, "west": 0.5}
STEPS, REFRESH = 60, 20


def images(camera: str, count: int = 96) -> TensorDataset:
    """Images (1, 20, 20), and masks (20, 20) of the square in each."""
    random = torch.Generator().manual_seed(list(CONTRAST).index(camera))
    x, mask = torch.randn(count, 1, 20, 20, generator=random) * 0.4, torch.zeros(count, 20, 20)
    for i, (top, left) in enumerate(torch.randint(0, 12, (count, 2), generator=random).tolist()):
        mask[i, top : top + 8, left : left + 8] = 1
    return TensorDataset(x + CONTRAST[camera] * mask[:, None], mask)


def loss_per_image(out: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Binary cross-entropy, the mean over the pixels of each image. (B,)"""
    return F.binary_cross_entropy_with_logits(out[:, 0], mask, reduction="none").mean((1, 2))  # particular to it


def overlap(model: nn.Module, data: TensorDataset) -> float:
    """Intersection over union of all images."""
    with torch.no_grad():
        found, mask = model(data.tensors[0])[:, 0] > 0, data.tensors[1] > 0
    return float((found & mask).sum() / (found | mask).sum())


def main() -> None:
    cameras = {name: images(name) for name in CONTRAST}
    unseen = cameras.pop("west")
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 8, 5, padding=2),
        nn.ReLU(),
        nn.Conv2d(8, 1, 1),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    penalty = dspreg.Penalty(model, weight=1e-2)
    loader = DataLoader(ConcatDataset(cameras.values()), 32, shuffle=True, generator=torch.Generator().manual_seed(0))
    batches = (batch for _ in range(STEPS) for batch in loader)
    for step, (x, mask) in zip(range(STEPS), batches, strict=False):
        if step and step % REFRESH == 0:
            few = {name: DataLoader(Subset(each, range(64)), 32) for name, each in cameras.items()}
            penalty.refresh(few, loss=loss_per_image)  # particular to it
        loss = penalty.backward(lambda: loss_per_image(model(x), mask).mean())  # noqa: B023
        optimizer.step()
        optimizer.zero_grad()
        if step and step % REFRESH == 0:
            c, null = (float(each.flat().mean()) for each in (penalty.profile.c, penalty.profile.null))
            print(f"step {step}: loss {loss:.3f}, mean c {c:.2f}, under random domain labels {null:.2f}")
    print(f"intersection over union on the unseen camera: {overlap(model, unseen):.2f}")


if __name__ == "__main__":
    main()
