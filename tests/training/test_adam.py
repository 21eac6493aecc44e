"""Our Adam is torch's to the bit."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import dspreg
from dspreg.training.adam import Adam

BOTH = (torch.optim.Adam, Adam)


def parameters():
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(5, 3)), torch.nn.Parameter(torch.randn(3))]


def walk(optimizer, params, steps, seed=1):
    torch.manual_seed(seed)
    for _ in range(steps):
        for p in params:
            p.grad = torch.randn_like(p)
        optimizer.step()
        optimizer.zero_grad()
        assert all(p.grad is None for p in params)
    return [p.detach().numpy().tobytes() for p in params]


@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.1, "amsgrad": True}, {"betas": (0.5, 0.9)}])
def test_steps_are_torchs(options):
    walked = []
    for made in BOTH:
        params = parameters()
        walked.append(walk(made(params, lr=0.01, **options), params, 6))
    assert walked[0] == walked[1]


@pytest.mark.parametrize(("before", "after"), [BOTH, BOTH[::-1]])
def test_either_goes_on_where_the_other_was(before, after):
    params = parameters()
    whole = torch.optim.Adam(params, lr=0.01)
    walk(whole, params, 3)
    expected = walk(whole, params, 3, seed=2)
    params = parameters()
    begun = before(params, lr=0.01)
    walk(begun, params, 3)
    ended = after(params, lr=0.5)
    ended.load_state_dict(begun.state_dict())
    assert walk(ended, params, 3, seed=2) == expected


def test_groups_hooks_closures_and_the_mode_of_gradients():
    params = parameters()
    adam = Adam(params[:1], lr=0.01)
    adam.add_param_group({"params": params[1:], "lr": 0.5})
    seen = []
    adam.register_step_post_hook(lambda *_: seen.append("after"))

    def closure():
        assert torch.is_grad_enabled()
        loss = sum(p.square().sum() for p in params)
        loss.backward()
        return loss

    assert adam.step(closure) > 0
    assert seen == ["after"]
    assert torch.is_grad_enabled()
    assert [group["lr"] for group in adam.param_groups] == [0.01, 0.5]
    with pytest.raises(ValueError, match="more than one parameter group"):
        adam.add_param_group({"params": params[:1]})


def test_no_compiler_is_imported():
    code = (
        "import sys, torch\n"
        "from dspreg.training.adam import Adam\n"
        "p = torch.nn.Parameter(torch.ones(2)); adam = Adam([p]); p.grad = torch.ones(2)\n"
        "adam.step(); adam.zero_grad(); adam.load_state_dict(adam.state_dict())\n"
        "print('torch._dynamo' in sys.modules)"
    )
    environment = {"PYTHONPATH": str(Path(dspreg.__file__).parents[1])}
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert ended.stdout.strip() == "False"
