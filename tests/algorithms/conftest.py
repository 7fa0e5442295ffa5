"""One thread for each test process: the vectors are small, and two threads only wait."""

import torch

torch.set_num_threads(1)
