#!/usr/bin/python3
"""tests/oracle/accuracy_torch.py FOLDER -- PyTorch's results for the inputs of querntest --mode ulp --peer

FOLDER/peer.txt has a line "N NAME DTYPE ROWS COLUMNS OPERANDS" for each function; the operands' elements are the files N.0 and N.1,
the result's become N.out. What PyTorch does not have is left out. With CUDA in $ACCURACY_DEVICE it is PyTorch on the GPU.
"""
import os
import sys

import torch
import torch.nn.functional as F

DTYPES = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16}
FUNCTIONS = {
    "div": torch.div, "reciprocal": torch.reciprocal, "sqrt": torch.sqrt, "mod": torch.remainder, "rsqrt": torch.rsqrt,
    "exp": torch.exp, "expm1": torch.expm1, "log": torch.log, "log1p": torch.log1p, "pow": torch.pow, "sin": torch.sin,
    "cos": torch.cos, "tan": torch.tan, "atan2": torch.atan2, "tanh": torch.tanh, "erf": torch.erf, "erfc": torch.erfc, "elu": F.elu,
    "sigmoid": torch.sigmoid, "softplus": F.softplus, "silu": F.silu, "mish": F.mish, "gelu": F.gelu,
    "gelu_quick": lambda x: x * torch.sigmoid(1.702 * x), "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "softmax": lambda x: F.softmax(x, -1), "log_softmax": lambda x: F.log_softmax(x, -1),
    "logsumexp": lambda x: torch.logsumexp(x, -1), "var": lambda x: torch.var(x, -1, correction=0),
    "std": lambda x: torch.std(x, -1, correction=0), "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:], eps=1e-5),
    "rms_norm": lambda x: F.rms_norm(x, x.shape[-1:], eps=1e-5),
}


def main(folder):
    device = os.environ.get("ACCURACY_DEVICE", "cpu")
    with open(folder + "/peer.txt") as file:
        lines = [line.split() for line in file]
    for number, name, dtype, rows, columns, operands in lines:
        if name not in FUNCTIONS:
            continue
        shape = (int(rows),) if columns == "1" else (int(rows), int(columns))
        x = []
        for k in range(int(operands)):
            with open("%s/%s.%d" % (folder, number, k), "rb") as file:
                x.append(torch.frombuffer(bytearray(file.read()), dtype=DTYPES[dtype]).view(shape).to(device))
        y = FUNCTIONS[name](*x).contiguous().cpu()
        with open("%s/%s.out" % (folder, number), "wb") as file:
            file.write(y.view(torch.uint8).numpy().tobytes())


if __name__ == "__main__":
    main(sys.argv[1])
