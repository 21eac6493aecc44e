"""A module with automatic optimisation and `PenaltyCallback` is the plain loop, to the bit."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dspreg.errors import ConfigError

lightning = pytest.importorskip("lightning", reason="needs lightning: make integrations")

from dspreg.integrations.lightning import PenaltyCallback  # noqa: E402
from helpers.plain_loop import EVERY, MEASURE, OPTIONS, STEPS, domains, equal, loader, network, plain  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # advice on workers and loggers
QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}


class Module(lightning.LightningModule):
    def __init__(self, as_dict=False, by_hand=False):
        super().__init__()
        self.net, self.as_dict, self.losses, self.calls = network(), as_dict, [], 0
        self.automatic_optimization = not by_hand

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, _):
        x, y = batch
        self.calls += 1
        loss = F.cross_entropy(self.net(x), y)
        self.log("loss", loss)
        return {"loss": loss, "more": x.sum()} if self.as_dict else loss

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.losses.append((outputs["loss"].item(), self.trainer.callback_metrics["loss"].item()))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-2)


def callback(**more):
    return PenaltyCallback(domains, every=EVERY, network=lambda m: m.net, measure=MEASURE, **{**OPTIONS, **more})


def fit(module, penalty, steps=STEPS, resume=None, **how):
    quiet = {"enable_checkpointing": False, **QUIET}
    trainer = lightning.Trainer(max_steps=steps, callbacks=[penalty], **{**quiet, **how})
    torch.manual_seed(1)
    trainer.fit(module, loader(), ckpt_path=resume, weights_only=False)
    return trainer


@pytest.mark.parametrize("as_dict", [False, True])
def test_it_is_the_plain_loop_to_the_bit(as_dict):
    other, losses, penalty = plain()
    module, ours = Module(as_dict), callback()
    fit(module, ours)
    assert equal(module.net, other)
    assert module.losses == [(loss, loss) for loss in losses]  # what is logged is of the first call alone
    assert module.calls == 2 * STEPS
    assert all(torch.equal(ours.penalty.coefficients[name], c) for name, c in penalty.coefficients.items())
    assert "training_step" not in vars(module)  # the module is left as it was
    without, *_ = plain(options={"weight": 0})
    assert not equal(module.net, without)


def test_clipping_is_that_of_the_penalised_gradient():
    module = Module()
    fit(module, callback(), gradient_clip_val=0.1)
    assert equal(module.net, plain(clip=True)[0])


def test_accumulated_gradients_are_their_mean():
    """One step of SGD over two batches, against the mean of two penalised gradients."""
    module, ours = Module(), PenaltyCallback(network=lambda m: m.net, **OPTIONS)
    module.net[3] = nn.Identity()
    module.configure_optimizers = lambda: torch.optim.SGD(module.parameters(), lr=1.0)
    fit(module, ours, steps=1, accumulate_grad_batches=2)
    net = network().train()
    net[3] = nn.Identity()
    import dspreg

    penalty = dspreg.Penalty(net, **OPTIONS)
    for x, y in list(loader())[:2]:
        penalty.backward(lambda: F.cross_entropy(net(x), y))  # noqa: B023
    for p, q in zip(network().parameters(), net.parameters(), strict=False):
        q.data = p.data - q.grad / 2
    for a, b in zip(module.net.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


def test_its_checkpoints_hold_the_penalty(tmp_path):
    first = callback()
    trainer = fit(Module(), first, steps=4)
    trainer.save_checkpoint(tmp_path / "four.ckpt")
    again = callback()
    fit(Module(), again, steps=5, resume=str(tmp_path / "four.ckpt"))
    assert again.penalty.steps == 5


def test_what_it_can_not_do_is_refused():
    with pytest.raises(ConfigError, match="optimises by hand"):
        fit(Module(by_hand=True), callback())
    with pytest.raises(ConfigError, match="without domains"):
        PenaltyCallback(every=3)
