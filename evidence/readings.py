"""Is there a reading of c under which its pattern matters? On the ERM models that `c.yaml` keeps; exploratory.

    python evidence/readings.py build/c --root build/data --out evidence/pacs/readings.jsonl

The paper leaves open what exactly is squared, how large ε is, and more. For each reading of c the penalty part 2λH(c⊙g)
is computed by `exact` on new training batches, for c and for the same c permuted within every tensor:

    shuffled   cosine and ratio of lengths of the second to the first, mean over the batches
    adam       the same cosine after both are divided as Adam divides a gradient, by √v̂
    default    cosine of the reading's part to that of the default c
    share      ‖part‖/‖g‖, where the reading has a scale
    spread     standard deviation of c over its mean, over all parameters

A kept model has no optimiser state, so v̂ is Adam's second moment (β₂ = 0.999, bias-corrected) of 20 more batches at
the same θ. Dividing by a √v̂ of nearly 0 gives a few enormous entries, which are rounding; so parameters with v̂ ≤ 1e-14
are left out (there Adam's own ε = 1e-8 takes over), and the thousandth of entries that are largest is cut to the
size of the next one.

Beside that, of the default c: the part without the network's curvature, JᵀΛK_c r (docs/understand/theory.md), how
much of c's variance is between tensors, how c goes with the importance s̄, and c by kind of parameter.
"""

from __future__ import annotations

import sys

import torch
from load_checkpoint import load_checkpoint, new_batches
from measure_checkpoints import make_parser, measure_checkpoints
from patterns import Parts, exact_parts, mean_of_each, similarity
from torch import Tensor, nn

import dspreg
from dspreg import Batch, DSPReg, ParamVector, Profile, gradient, trainable
from dspreg.penalty.tangent import displace
from dspreg.randomness import generator
from dspreg.sensitivity.profile import layer_of, upper_quantile
from dspreg.sensitivity.statistics import coefficient_of_variation, rank_correlation
from dspreg.training.experiment import Experiment
from dspreg.vectors import standing_at

BATCHES, MOMENT = 2, 20  # for parts, and for Adam's second moment
BETA, LEAST, CUT = 0.999, 1e-14, 0.999
EPSILONS = (1e-8, 1e-6, 1e-4, 1e-2)
NO_SCALE = ("√v", "v", "s̄")  # λ would have another unit


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--steps", nargs="+", type=int, default=[299])
    parser.add_argument("--algorithm", default="ERM", help="of the runs (default: ERM)")
    options = parser.parse_args()
    measure_checkpoints(
        options.store,
        options.out,
        lambda run, step: compare_readings(*load_checkpoint(run, step, options.root, options.weights)),
        steps=options.steps,
        trials=[0],
        algorithms=[options.algorithm],
    )
    return 0


def compare_readings(experiment: Experiment, algorithm: DSPReg) -> dict[str, object]:
    profile = algorithm.profile()
    usual = build_readings(algorithm, profile)
    steps = new_batches(experiment, BATCHES + MOMENT)
    moment = second_moment(algorithm, steps[BATCHES:])
    found: dict[str, list[dict[str, list[float]]]] = {}
    others: dict[str, list[list[float]]] = {}
    newton = []
    for step in steps[:BATCHES]:
        g = gradient(algorithm.loss(algorithm(step)), algorithm.net)
        readings = usual | {"the step's own batch": measure_own_batch(algorithm, step)}
        arranged = {f"{name}, shuffled": shuffle(algorithm, c) for name, c in readings.items()}
        controls = build_controls(profile.c)
        parts = exact_parts(algorithm, step, readings | arranged | controls)
        for name in readings:
            ours, theirs = parts[name], parts[f"{name}, shuffled"]
            both = {
                "shuffled": similarity(theirs, ours),
                "adam": similarity(divide(theirs, moment), divide(ours, moment))[:1],
                "default": similarity(ours, parts["default"])[:1],
            }
            if name not in NO_SCALE:
                both["share"] = [float(ours.norm() / g.norm())]
            found.setdefault(name, []).append(both)
        for name in controls:
            cosine = similarity(parts[name], parts["default"])
            adam = similarity(divide(parts[name], moment), divide(parts["default"], moment))[:1]
            others.setdefault(name, []).append([*cosine, *adam])
        newton.append(compare_gauss_newton(algorithm, step, profile.c, arranged["default, shuffled"], parts, moment))
    return {
        "readings": {
            name: {"spread": spread(readings[name])} | {k: mean_of_each([each[k] for each in every]) for k in every[0]}
            for name, every in found.items()
        },
        "controls": {name: mean_of_each(each) for name, each in others.items()},
        "gauss_newton": {key: sum(each[key] for each in newton) / len(newton) for key in newton[0]},
        "importance": relate_to_importance(profile),
        "kinds": average_by_kind(algorithm.net, profile),
    }


# What c may be.


def build_readings(algorithm: DSPReg, profile: Profile) -> dict[str, ParamVector]:
    """c by name, from the images that a refresh takes; all but the one of the step's own batch."""
    c, mean, root = profile.c, profile.mean, profile.variance.sqrt()
    assert profile.c_debiased is not None
    found = {"default": c}
    found |= {f"ε = {eps:.0e}": root.map(lambda r, s, e=eps: r / (s + e), mean) for eps in EPSILONS}
    algorithm.of, algorithm.measure_batches = "output", algorithm.measure_batches // 4  # seven backward passes each
    found["of the output"] = algorithm.measure_c()
    algorithm.of, algorithm.measure_batches = "loss", algorithm.measure_batches * 4
    algorithm.estimator = "minibatch"
    found["`minibatch`"] = algorithm.measure_c()
    algorithm.estimator = "persample"
    found["by filter"] = spread_filters(profile)
    found["debiased"] = profile.c_debiased
    found["4th power"] = c.map(lambda t: t**4)
    found["8th power"] = c.map(lambda t: t**8)
    found["reversed, √2 − c"] = c.map(lambda t: profile.bound - t)
    for name, least in (("hard, upper half", upper_quantile(c, 0.5)), ("hard, top tenth", upper_quantile(c, 0.9))):
        found[name] = c.map(lambda t, least=least: (t >= least).to(t.dtype))
    return found | {"√v": root, "v": profile.variance, "s̄": mean}


def spread_filters(profile: Profile) -> ParamVector:
    """c of the mean s of every filter or row, at all of its parameters."""
    means = [s.map(lambda t: t.flatten(1).mean(1) if t.ndim > 1 else t) for s in profile.s.values()]
    by_filter = coefficient_of_variation(means)
    return profile.c.map(lambda t, f: f.to(t.dtype).view(-1, *[1] * (t.ndim - 1)).expand_as(t).contiguous(), by_filter)


def measure_own_batch(algorithm: DSPReg, step: list[Batch]) -> ParamVector:
    """c on the images that the penalty is computed on."""
    domains = {str(batch.domain): [(batch.x, batch.y)] for batch in step}
    return dspreg.measure(algorithm.net, domains, null=False).c


def shuffle(algorithm: DSPReg, c: ParamVector) -> ParamVector:
    """Permuted within every tensor, all readings alike."""
    algorithm.coefficients = "shuffled"
    found = algorithm.arrange(c)
    algorithm.coefficients = "dynamic"
    return found


def build_controls(c: ParamVector) -> dict[str, ParamVector]:
    """c shuffled over the whole network, and the mean of every tensor in it."""
    flat = c.flat()
    pieces = flat[torch.randperm(len(flat), generator=generator("readings"))].split([t.numel() for t in c.values()])
    return {
        "shuffled over the network": ParamVector(
            (name, piece.view_as(t)) for (name, t), piece in zip(c.items(), pieces, strict=True)
        ),
        "tensor means": c.map(lambda t: torch.full_like(t, float(t.mean()))),
    }


def spread(c: ParamVector) -> float:
    flat = c.flat().double()
    return float(flat.std() / flat.mean())


# How Adam sees a part.


def second_moment(algorithm: DSPReg, steps: list[list[Batch]]) -> Tensor:
    """v̂ after these steps from 0, θ standing still."""
    total = torch.zeros(sum(p.numel() for p in trainable(algorithm.net).values()), dtype=torch.float64)
    for step in steps:
        g = gradient(algorithm.loss(algorithm(step)), algorithm.net).flat().double()
        total.mul_(BETA).addcmul_(g, g, value=1 - BETA)
    return total / (1 - BETA ** len(steps))


def divide(part: Tensor, moment: Tensor) -> Tensor:
    """The part over √v̂, where v̂ is not rounding, and without its largest entries."""
    kept = moment > LEAST
    scaled = part[kept] / moment[kept].sqrt()
    most = scaled.abs().kthvalue(max(1, int(CUT * len(scaled)))).values
    return scaled.clamp(-most, most)


# Gauss–Newton.


def compare_gauss_newton(
    algorithm: DSPReg, step: list[Batch], c: ParamVector, shuffled: ParamVector, parts: Parts, moment: Tensor
) -> dict[str, float]:
    """JᵀΛK_c r beside the whole part, and the change of residuals ΛK_c r of c beside that of shuffled c."""
    out = algorithm(step)
    places = out.logits.detach().requires_grad_()
    (r,) = torch.autograd.grad(algorithm.loss(out.with_tensors({"logits": places})), places, create_graph=True)
    params = list(trainable(algorithm.net).values())
    g = ParamVector(
        zip(
            trainable(algorithm.net),
            torch.autograd.grad(out.logits, params, r.detach(), retain_graph=True),
            strict=True,
        )
    )
    changes = {
        name: change_logits(algorithm, step, v) for name, v in {"c": c * g, "shuffled": shuffled * g, "g": g}.items()
    }
    (bent,) = torch.autograd.grad((r * changes["c"]).sum(), places, retain_graph=True)  # ΛK_c r
    (other,) = torch.autograd.grad((r * changes["shuffled"]).sum(), places)
    part = torch.cat([t.reshape(-1).double() for t in torch.autograd.grad(out.logits, params, bent)])
    cosine, ratio = similarity(2 * algorithm.weight * part, parts["default"])

    def angle(a: Tensor, b: Tensor) -> float:
        return similarity(a.detach().double().flatten(), b.detach().double().flatten())[0]

    return {
        "to exact": cosine,
        "ratio": ratio,
        "to exact, adam": similarity(divide(part, moment), divide(parts["default"], moment))[0],
        "logits, c to c = 1": angle(changes["c"], changes["g"]),  # K_c r to K r
        "logits, c to shuffled": angle(changes["c"], changes["shuffled"]),
        "residuals, c to shuffled": angle(bent, other),
        "residuals, change to r": angle(bent, r),
    }


@torch.no_grad()
def change_logits(algorithm: DSPReg, step: list[Batch], v: ParamVector) -> Tensor:
    """J v, the derivative of the logits along v, by a central difference."""
    ahead, inverse = displace(algorithm.net, v)
    behind, _ = displace(algorithm.net, -v)
    found = []
    for point in (ahead, behind):
        with standing_at(algorithm.net, point, keeps_graphs=True):
            found.append(algorithm(step).logits.double())
    return ((found[0] - found[1]) * (inverse / 2)).float()


# What c is like.


def relate_to_importance(profile: Profile) -> dict[str, float]:
    """c beside s̄, over the parameters that some domain is sensitive to; and c's variance between tensors."""
    c, s = (profile.over_alive(each).double() for each in (profile.c, profile.mean))
    chosen = c > c.kthvalue(int(0.9 * len(c))).values
    tensors = [t[a].double() for t, a in zip(profile.c.values(), profile.alive().values(), strict=True)]
    tensors = [t for t in tensors if len(t)]
    between = sum(len(t) * (t.mean() - c.mean()) ** 2 for t in tensors) / len(c)
    return {
        "spearman": rank_correlation(c, s),
        "log": float(torch.corrcoef(torch.stack([c, s.log()]))[0, 1]),
        "held": float(s[chosen].sum() / s.sum()),
        "between": float(between / c.var(correction=0)),
    }


def average_by_kind(net: nn.Module, profile: Profile) -> dict[str, dict[str, float]]:
    """Mean c, null and c without noise of the sensitive parameters of each kind."""
    kinds: dict[str, list[str]] = {}
    for name in profile.c:
        kinds.setdefault(kind_of(net.get_submodule(layer_of(name)), name), []).append(name)
    assert profile.null is not None
    assert profile.c_debiased is not None
    vectors = {"c": profile.c, "null": profile.null, "debiased": profile.c_debiased}
    alive = profile.alive()
    found = {}
    for kind, names in kinds.items():
        values = {key: torch.cat([vector[n][alive[n]].double() for n in names]) for key, vector in vectors.items()}
        found[kind] = {key: float(each.mean()) for key, each in values.items()} | {"parameters": len(values["c"])}
    return found


def kind_of(module: nn.Module, name: str) -> str:
    """In the words of the table."""
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        return f"batch norm, {name.rpartition('.')[2]}"
    if isinstance(module, nn.Conv2d):
        return "depthwise" if module.groups > 1 else "1×1 convolution" if module.kernel_size == (1, 1) else "stem"
    return "head"


if __name__ == "__main__":
    sys.exit(main())
