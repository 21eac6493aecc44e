"""A program that imports all of dspreg and trains with what Windows lacks hidden; argv: an empty folder.

Prints what happened, as JSON.
"""

import importlib
import json
import multiprocessing
import multiprocessing.context
import os
import pkgutil
import re
import signal
import sys
import warnings
from pathlib import Path

MODULES = ("fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty")
CALLS = (
    "O_NO", "chown", "fch", "fork", "getegid", "geteuid", "getgid", "getloadavg", "getuid", "killpg", "memfd_create",
    "mkfifo", "nice", "posix_", "pread", "pwrite", "register_at_fork", "sched_", "setsid", "statvfs", "uname", "wait3",
    "wait4", "WIF",
)  # fmt: skip
SIGNALS = {"SIGABRT", "SIGFPE", "SIGILL", "SIGINT", "SIGSEGV", "SIGTERM"}  # that Windows has


def hide():
    """Modules before others look for them; functions after torch, which asks sys.platform what there is."""
    for name in MODULES:
        sys.modules[name] = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # filelock: that there is only its plainest kind
        import torchvision  # noqa: F401
    for module, names in (
        (os, [name for name in dir(os) if name.startswith(CALLS)]),
        (signal, [name for name in dir(signal) if re.match("SIG[^_]", name) and name not in SIGNALS]),
        (multiprocessing.context, ["ForkContext", "ForkProcess", "ForkServerContext", "ForkServerProcess"]),
    ):
        for name in names:
            delattr(module, name)
    multiprocessing.get_all_start_methods = lambda: ["spawn"]
    from dspreg.io import atomic_files

    atomic_files.OPENS_FOLDERS = False


def main(place):
    import dspreg
    from dspreg.config.train_config import Execution
    from dspreg.errors import InUse
    from dspreg.runs.folder import RunFolder

    left_out = ["__main__", ".files"]  # a start of the command line; the user's own to be
    left_out += [f"integrations.{name}" for name in ("accelerate", "lightning", "transformers")]  # packages of others
    modules = [each.name for each in pkgutil.walk_packages(dspreg.__path__, "dspreg.")]
    modules = [name for name in modules if not any(part in name for part in left_out)]
    for name in modules:
        importlib.import_module(name)

    told = {"modules": len(modules), "hidden": not hasattr(os, "fork") and not hasattr(signal, "SIGKILL")}
    execution = Execution(threads=1, workers=0, cache="disk", check_images="never", profile="never")
    settings = {"dataset": "digits", "targets": ("print",), "steps": 2, "model": "small-cnn", "batch_size": 4}
    config = dspreg.TrainConfig(algorithm="ERM", **settings)
    told["step"] = dspreg.train(config, execution, out=place / "run")["last"]["step"]
    with RunFolder(place / "run").locked():
        try:
            dspreg.train(config, execution, out=place / "run")
        except InUse as error:
            told["refused"] = str(error)
    print(json.dumps(told))


if __name__ == "__main__":
    hide()
    main(Path(sys.argv[1]))
