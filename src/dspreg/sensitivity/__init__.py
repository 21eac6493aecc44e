"""How sensitive a network is to each of its parameters on each domain, and how much this differs between domains."""

from dspreg.sensitivity.compare import Comparison, compare
from dspreg.sensitivity.measure import measure
from dspreg.sensitivity.meter import Meter
from dspreg.sensitivity.profile import Profile
from dspreg.sensitivity.statistics import coefficient_of_variation
from dspreg.sensitivity.variance import RunningVariance

__all__ = ["Comparison", "Meter", "Profile", "RunningVariance", "coefficient_of_variation", "compare", "measure"]
