"""`PenaltyTrainer` is the plain loop, to the bit."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dspreg.errors import ConfigError

transformers = pytest.importorskip("transformers", reason="needs transformers: make integrations")
pytest.importorskip("accelerate", reason="its Trainer needs accelerate: make integrations")

from dspreg.integrations.transformers import FILE, PenaltyTrainer  # noqa: E402
from helpers.plain_loop import EVERY, MEASURE, OPTIONS, STEPS, data, domains, equal, loader, network, plain  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # of versions and pinned memory


class Wrapped(nn.Module):
    """As models of transformers: a loss where there are labels."""

    def __init__(self):
        super().__init__()
        self.net = network()

    def forward(self, x=None, labels=None):
        logits = self.net(x)
        loss = None if labels is None else F.cross_entropy(logits, labels)
        return transformers.modeling_outputs.SequenceClassifierOutput(loss=loss, logits=logits)


def named(pairs):
    x, y = (torch.stack(list(part)) for part in zip(*pairs, strict=True))
    return {"x": x, "labels": y}


def to_measure_on():
    return {name: [{"x": x, "labels": y} for x, y in batches] for name, batches in domains().items()}


class InOrder(PenaltyTrainer):
    """With the batches of the plain loop."""

    def get_train_dataloader(self):
        batches = loader()
        batches.collate_fn = named
        return batches


def make(out, steps=STEPS, **more):
    how = transformers.TrainingArguments(
        str(out), max_steps=steps, learning_rate=3e-2, weight_decay=0.0, lr_scheduler_type="constant", seed=1,
        optim="adamw_torch", use_cpu=True, report_to=[], logging_strategy="no", disable_tqdm=True, max_grad_norm=0.1,
        **{"save_strategy": "no", **more},
    )  # fmt: skip
    return InOrder(
        Wrapped(), how, train_dataset=data(), penalty=OPTIONS, domains=to_measure_on, every=EVERY, measure=MEASURE
    )


def test_it_is_the_plain_loop_to_the_bit(tmp_path):
    trainer = make(tmp_path)
    trainer.train()
    assert equal(trainer.model.net, plain(clip=True, decay=0.0)[0])
    assert trainer.penalty.steps == STEPS
    assert not equal(trainer.model.net, plain(clip=True, decay=0.0, options={"weight": 0})[0])


def test_resumed_from_its_checkpoint_it_goes_on_to_the_same_bits(tmp_path):
    whole = make(tmp_path / "whole")
    whole.train()
    make(tmp_path / "parts", steps=4, save_strategy="steps", save_steps=4).train()
    assert (tmp_path / "parts/checkpoint-4" / FILE).exists()
    again = make(tmp_path / "parts")
    again.train(resume_from_checkpoint=str(tmp_path / "parts/checkpoint-4"))
    assert again.penalty.steps == STEPS
    assert equal(again.model, whole.model)


def test_what_it_can_not_do_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="gradient_accumulation_steps=2"):
        make(tmp_path, gradient_accumulation_steps=2)
    (tmp_path / "checkpoint-4").mkdir()
    with pytest.raises((ConfigError, ValueError), match="checkpoint"):
        make(tmp_path).train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
