"""Which layers go together: every ordered pair keeps the laws, or is refused by a message that helps."""

from dspreg.algorithms.registry import algorithms
from dspreg.algorithms.weight_average import WeightAverage
from dspreg.errors import ConfigError
from dspreg.testing.laws import Problem, check_laws, maker
from dspreg.testing.toy import IMAGE
from dspreg.vectors import ParamVector, theta

LAYERS = [name for name in algorithms() if name != "ERM"]
LAWS = ("law 2", "law 3", "soft labels", "law 5", "law 6")  # repeatable, one domain, soft labels, saved whole
ACTING = {  # small, and so that it is at work within the few steps of a law
    "ARM": "ARM(width=4)",
    "DANN": "DANN(mlp_width=16)",
    "DSPReg": "DSPReg(measure_batches=2)",
    "EMA": "EMA(decay=0.5)",
    "EWC": "EWC(measure_batches=2)",
    "ERMPlusPlus": "ERMPlusPlus(linear_steps=0, start=1)",
    "Fishr": "Fishr(warmup=1)",
    "GGA": "GGA(rho=0.01, start=0, end=100, tries=3)",
    "IRM": "IRM(warmup=1)",
    "LPFT": "LPFT(probe_steps=1)",
    "SWA": "SWA(start=1)",
    "SWAD": "SWAD(n_converge=1, n_tolerance=2)",
    "VREx": "VREx(warmup=1)",
}


def weights_of_prediction(stack):
    """θ, or its average where a layer predicts with that."""
    averages = [layer.mean for layer in stack.layers() if isinstance(layer, WeightAverage)]
    return ParamVector({name: t for each in (theta(stack.net), *averages) for name, t in each.items()})


def refusal(below, above):
    """The message that `below+above` is refused with; None if it keeps the laws."""
    spec = f"{ACTING.get(below, below)}+{ACTING.get(above, above)}"
    try:
        check_laws(maker(spec), Problem(IMAGE), LAWS)
    except ConfigError as error:
        return str(error)
    return None
