"""bench/peers/zoo_serve.py -- what the peers eager and compile share: PyTorch on the CPU or on a card, by the case"""
import os

import torch

import zoo_models
from peer import serve


def main(name):
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    serve(name, torch.__version__, lambda kind, v: zoo_models.prepare(kind, v, name == "compile"))
