"""bench/peers/zoo_models.py -- the networks of `quern bench zoo` in PyTorch: training steps and answers

A network is its module, what it reads, and what its answer is compared with; cli/zoo.c has the same table of Quern's.
What is timed is eager, or compiled by torch.compile."""
import ctypes
import gc
import time

import torch
import torch.nn.functional as F
from torch import nn

import zoo_images as images
import zoo_pictures as pictures
import zoo_sequences as sequences
import zoo_tables as tables
import zoo_text as text
from peer import Unknown

# ---- what they read --------------------------------------------------------------------------------------------------


def floats(*keys):
    """Sizes are numbers or the names of them."""
    return lambda v: 2 * torch.rand(*(v.get(k, k) for k in keys)) - 1


def integers(below, *keys):
    return lambda v: torch.randint(v.get(below, below), tuple(v.get(k, k) for k in keys))


def many(x, *keys):
    """The same of B times as many rows: one graph of all."""
    return lambda v: x({**v, **{k: v["B"] * v[k] for k in keys}})


IMAGE = [floats("B", 3, "size", "size")]
TOKENS = [integers("V", "B", "T")]
EDGES = many(integers("nodes", "edges"), "nodes", "edges")
CLASSES, TOKEN = integers("classes", "B"), integers("V", "B", "T")

# module, inputs, target: labels when it is of integers; None: the module gives the loss, asked for by its last argument
NETWORKS = {
    "gpt2": (text.GPT2, TOKENS, TOKEN),
    "modern": (text.Modern, TOKENS, TOKEN),
    "bert": (text.BERT, TOKENS, TOKEN),
    "encdec": (text.EncDec, [integers("V", "B", "S"), integers("V", "B", "T")], TOKEN),
    "moe": (text.MoE, TOKENS, TOKEN),
    "vit": (images.ViT, IMAGE, CLASSES),
    "mixer": (images.Mixer, IMAGE, CLASSES),
    "resnet18": (images.resnet, IMAGE, CLASSES),
    "resnet50": (images.resnet, IMAGE, CLASSES),
    "mobilenetv2": (images.mobilenet, IMAGE, CLASSES),
    "convnext": (images.convnext, IMAGE, CLASSES),
    "unet": (pictures.UNet, IMAGE, integers(2, "B", "size", "size")),
    "diffusion": (pictures.Diffusion, IMAGE + [floats("B", 1)], floats("B", 3, "size", "size")),
    "dcgan": (pictures.DCGAN, [floats("B", "Z", 1, 1)], floats("B", 3, 64, 64)),
    "vae": (pictures.VAE, IMAGE, None),
    "wavenet": (sequences.WaveNet, [floats("B", 1, "T")], integers(256, "B", "T")),
    "conv3d": (sequences.Conv3d, [floats("B", 3, "frames", "size", "size")], CLASSES),
    "lstm": (sequences.LSTM, TOKENS, TOKEN),
    "gru": (sequences.GRU, [floats("B", "T", "in")], CLASSES),
    "mamba": (sequences.Mamba, TOKENS, TOKEN),
    "mlp": (tables.MLP, [integers("rows", "B", "tables"), floats("B", "numbers")], floats("B", 1)),
    "deepsets": (tables.DeepSets, [floats("B", "N", "in")], CLASSES),
    "messages": (tables.Messages, [many(floats("nodes", "in"), "nodes"), EDGES, EDGES], CLASSES),
    "pinn": (tables.PINN, [floats("B", 1), floats("B", 1)], None),
    "dlrm": (tables.DLRM, [integers("rows", "B", "tables"), floats("B", "dense")], floats("B", 1)),
}

# convolutions of images are faster so, up to twice
CHANNELS_LAST = {"resnet18", "resnet50", "mobilenetv2", "convnext", "unet", "diffusion"}

# ---- memory ----------------------------------------------------------------------------------------------------------


def resident(key):
    """VmRSS or VmHWM, in bytes."""
    with open("/proc/self/status") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith(key))


def memory_begin(cuda):
    gc.collect()
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the most so far is what there is now
    return resident("VmRSS")


def memory_most(cuda):
    return torch.cuda.max_memory_allocated() if cuda else resident("VmHWM")


# ---- a step, an answer -----------------------------------------------------------------------------------------------


def loss_of(name, model, target):
    def loss(*inputs):
        if target is None:
            return model(*inputs, True)
        if name == "dcgan":
            return model(*inputs, target)
        y = model(*inputs)
        if target.is_floating_point():
            return F.mse_loss(y, target)
        return F.cross_entropy(y.flatten(0, -2), target.flatten())

    return loss


def training(name, v, model, inputs, target, how):
    loss = how(loss_of(name, model, target))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    kind = "cuda" if v.get("cuda", 0) else "cpu"

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(kind, torch.bfloat16, enabled=bool(v.get("bf16", 0))):
            value = loss(*inputs)
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def answering(v, model, inputs, how):
    model.eval()
    if v.get("bf16", 0):
        model.to(torch.bfloat16)
        inputs = [x.to(torch.bfloat16) if x.is_floating_point() else x for x in inputs]
    answer = how(model)

    def ask():
        with torch.inference_mode():
            answer(*inputs)

    return ask


def prepare(kind, v, compiled):
    """kind: zoo_train_NAME or zoo_infer_NAME. The first step is made here, from nothing; its seconds are reported."""
    _, mode, name = kind.split("_", 2)
    if name not in NETWORKS:
        raise Unknown(f"there is no network {name}")
    cuda, start = bool(v.get("cuda", 0)), time.perf_counter()
    v = {**v, "train": mode == "train"}
    torch._dynamo.reset()
    before = memory_begin(cuda)
    build, reads, target = NETWORKS[name]
    options = {"mode": "reduce-overhead"} if cuda else {}
    how = (lambda f: torch.compile(f, dynamic=False, **options)) if compiled else (lambda f: f)
    with torch.device("cuda" if cuda else "cpu"):
        model, inputs = build(v), [read(v) for read in reads]
        if name in CHANNELS_LAST:
            model.to(memory_format=torch.channels_last)
            inputs = [x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x for x in inputs]
        count = sum(p.numel() for p in model.parameters())
        if v["train"]:
            run = training(name, v, model, inputs, None if target is None else target(v), how)
        else:
            run = answering(v, model, inputs, how)
        run()

    def finish():
        if cuda:
            torch.cuda.synchronize()

    finish()
    first = time.perf_counter() - start
    run.finish = finish
    run.report = lambda: {"parameters": count, "first_s": first, "peak_bytes": memory_most(cuda) - before}
    return run
