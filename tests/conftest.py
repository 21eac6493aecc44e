import atexit
import os
import shutil
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test may reach for a model hub
if "DSPREG_CACHE" not in os.environ:  # nor fill the cache of whoever runs the tests
    os.environ["DSPREG_CACHE"] = tempfile.mkdtemp(prefix="dspreg-cache-")
    atexit.register(shutil.rmtree, os.environ["DSPREG_CACHE"], ignore_errors=True)

import torch

torch.set_num_threads(1)  # the suite runs two processes at a time, and equal thread counts give equal bits


def pytest_addoption(parser):
    parser.addoption("--parity", action="store_true", help="print how near every method is to its plain re-derivation")
    parser.addoption("--fuzz", type=int, default=50, metavar="N", help="examples of each fuzzer (default: 50)")


def pytest_terminal_summary(terminalreporter, config):
    if not config.getoption("--parity"):
        return
    from reference import plain

    found = plain.DIFFERENCES
    for method in sorted({method for method, _ in found}, key=str.lower):
        numbers = [f"{o} {found[method, o]:.0e}" for o in ("sgd", "adam") if (method, o) in found]
        terminalreporter.write_line(f"{method:10} {', '.join(numbers)}")
