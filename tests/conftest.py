import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test may reach for a model hub

import torch

torch.set_num_threads(1)  # the suite runs two processes at a time, and equal thread counts give equal bits
