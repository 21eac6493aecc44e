"""DSP-Reg for text: batches are dictionaries, and the embedding is left out of the penalty.

    python examples/text.py

Reviews, good or bad, from three shops with words of their own; a fourth shop is never seen in training. What is
particular to text is marked: batches of tokens with a mask go into the network by name, as those of Hugging Face do,
and rows of the embedding of words that one shop alone uses would have the largest c, whatever they mean.
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

import dspreg

SHOPS = ("books", "garden", "music", "toys")
GOOD, BAD, OWN, LENGTH = range(1, 11), range(11, 21), 10, 12  # tokens: 0 pads, then good, bad, and each shop's own
STEPS, REFRESH = 60, 20


class Reviews(Dataset):
    """Tokens, mask and label of each review: most of its words of judgement are of the label's kind."""

    def __init__(self, shop: str, count: int = 96):
        random = torch.Generator().manual_seed(SHOPS.index(shop))
        own = 21 + OWN * SHOPS.index(shop)
        self.samples = []
        for i in range(count):
            words = []
            for _ in range(int(torch.randint(6, LENGTH + 1, (), generator=random))):
                right = float(torch.rand((), generator=random)) < 0.8
                judging = float(torch.rand((), generator=random)) < 0.6
                start = (GOOD if right == (i % 2 == 1) else BAD).start if judging else own
                words.append(start + int(torch.randint(10, (), generator=random)))
            tokens = torch.tensor(words + [0] * (LENGTH - len(words)))
            self.samples.append({"tokens": tokens, "mask": (tokens > 0).float(), "labels": torch.tensor(i % 2)})

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return self.samples[i]


class Reader(nn.Module):
    """The mean over the words of a small recurrent network's states."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(21 + OWN * len(SHOPS), 16, padding_idx=0)
        self.states = nn.GRU(16, 24, batch_first=True)
        self.head = nn.Linear(24, 2)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        states, _ = self.states(self.embedding(tokens))
        return self.head((states * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True))


def main() -> None:
    shops = {name: Reviews(name) for name in SHOPS}
    unseen = shops.pop("toys")
    torch.manual_seed(0)
    model = Reader()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    penalty = dspreg.Penalty(model, weight=1e-2, exclude="embedding.*", engine="lookahead")  # particular to it
    everything = torch.utils.data.ConcatDataset(shops.values())
    loader = DataLoader(everything, 32, shuffle=True, generator=torch.Generator().manual_seed(0))
    batches = (batch for _ in range(STEPS) for batch in loader)
    for step, batch in zip(range(STEPS), batches, strict=False):
        if step and step % REFRESH == 0:
            penalty.refresh({name: DataLoader(each, 32) for name, each in shops.items()})  # dictionaries are understood
        loss = penalty.backward(
            lambda: F.cross_entropy(model(batch["tokens"], batch["mask"]), batch["labels"])  # noqa: B023
        )
        optimizer.step()
        optimizer.zero_grad()
        if step and step % REFRESH == 0:
            c, null = (float(each.flat().mean()) for each in (penalty.profile.c, penalty.profile.null))
            print(f"step {step}: loss {loss:.3f}, mean c {c:.2f}, under random domain labels {null:.2f}")
    (everything_unseen,) = DataLoader(unseen, len(unseen))
    with torch.no_grad():
        said = model(everything_unseen["tokens"], everything_unseen["mask"]).argmax(1)
    print(f"accuracy on the unseen shop: {float((said == everything_unseen['labels']).float().mean()):.2f}")


if __name__ == "__main__":
    main()
