"""What `dspreg doctor` looks at: the machine, what is installed, data, weights, a store, and how fast it all is."""

from dspreg.doctor.checks import examine_machine
from dspreg.doctor.estimate import estimate_range, estimate_run
from dspreg.doctor.findings import Finding
from dspreg.doctor.throughput import Throughput, measure_throughput

__all__ = ["Finding", "Throughput", "estimate_range", "estimate_run", "examine_machine", "measure_throughput"]
