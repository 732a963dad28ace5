"""bench/peers/zoo_images.py -- the networks of `quern bench zoo` that classify images, in PyTorch (cli/zoo_images.c)"""
import torch
import torch.nn.functional as F
from torch import nn

from zoo_text import Block, FeedForward


class Patches(nn.Module):
    def __init__(self, v):
        super().__init__()
        self.conv = nn.Conv2d(3, v["C"], v["patch"], v["patch"])

    def forward(self, x):
        return self.conv(x).flatten(2).transpose(1, 2)


class ViT(nn.Module):
    def __init__(self, v):
        super().__init__()
        c, n = v["C"], (v["size"] // v["patch"]) ** 2 + 1
        self.patches, self.norm, self.head = Patches(v), nn.LayerNorm(c), nn.Linear(c, v["classes"])
        self.cls, self.positions = nn.Parameter(torch.randn(1, 1, c) * 0.02), nn.Parameter(torch.randn(n, c) * 0.02)
        self.blocks = nn.ModuleList(Block(c, v["H"], F.gelu, True) for _ in range(v["layers"]))

    def forward(self, x):
        x = self.patches(x)
        x = torch.cat((self.cls.expand(x.shape[0], -1, -1), x), 1) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x[:, 0]))


class MixerBlock(nn.Module):
    def __init__(self, v):
        super().__init__()
        c, n = v["C"], (v["size"] // v["patch"]) ** 2
        self.norm1, self.norm2 = nn.LayerNorm(c), nn.LayerNorm(c)
        self.patches, self.channels = FeedForward(n, v["P"], F.gelu), FeedForward(c, v["F"], F.gelu)

    def forward(self, x):
        x = x + self.patches(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class Mixer(nn.Module):
    def __init__(self, v):
        super().__init__()
        self.patches, self.norm = Patches(v), nn.LayerNorm(v["C"])
        self.blocks = nn.Sequential(*(MixerBlock(v) for _ in range(v["layers"])))
        self.head = nn.Linear(v["C"], v["classes"])

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.patches(x))).mean(1))


# ---- convolutions ----------------------------------------------------------------------------------------------------


def conv(c, o, window, stride=1, groups=1):
    return nn.Conv2d(c, o, window, stride, window // 2, groups=groups, bias=False)


class Residual(nn.Module):
    """A basic block, or a bottleneck that is four times as wide at its end."""

    def __init__(self, c, o, stride, deep):
        super().__init__()
        self.out = 4 * o if deep else o
        if deep:
            layers = [conv(c, o, 1), nn.BatchNorm2d(o), nn.ReLU(), conv(o, o, 3, stride), nn.BatchNorm2d(o), nn.ReLU(),
                      conv(o, self.out, 1), nn.BatchNorm2d(self.out)]
        else:
            layers = [conv(c, o, 3, stride), nn.BatchNorm2d(o), nn.ReLU(), conv(o, o, 3), nn.BatchNorm2d(o)]
        self.layers, self.short = nn.Sequential(*layers), nn.Identity()
        if stride != 1 or c != self.out:
            self.short = nn.Sequential(conv(c, self.out, 1, stride), nn.BatchNorm2d(self.out))

    def forward(self, x):
        return F.relu(self.layers(x) + self.short(x))


def resnet(v):
    deep, small, c = v["depth"] == 50, v["size"] <= 64, 64
    layers = [conv(3, 64, 3 if small else 7, 1 if small else 2), nn.BatchNorm2d(64), nn.ReLU()]
    if not small:
        layers.append(nn.MaxPool2d(3, 2, 1))
    for stage, n in enumerate((3, 4, 6, 3) if deep else (2, 2, 2, 2)):
        for i in range(n):
            layers.append(Residual(c, 64 << stage, 2 if i == 0 and stage > 0 else 1, deep))
            c = layers[-1].out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, v["classes"]))


def conv_norm(c, o, window, stride, groups, clip):
    layers = [conv(c, o, window, stride, groups), nn.BatchNorm2d(o)] + ([nn.ReLU6()] if clip else [])
    return nn.Sequential(*layers)


class Inverted(nn.Module):
    def __init__(self, c, expand, o, stride):
        super().__init__()
        wide, self.around = c * expand, stride == 1 and c == o
        layers = [conv_norm(c, wide, 1, 1, 1, True)] if expand > 1 else []
        self.layers = nn.Sequential(*layers, conv_norm(wide, wide, 3, stride, wide, True),
                                    conv_norm(wide, o, 1, 1, 1, False))

    def forward(self, x):
        return x + self.layers(x) if self.around else self.layers(x)


def mobilenet(v):
    layers, c = [conv_norm(3, 32, 3, 2, 1, True)], 32
    for expand, o, n, stride in ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
                                 (6, 160, 3, 2), (6, 320, 1, 1)):
        for i in range(n):
            layers.append(Inverted(c, expand, o, stride if i == 0 else 1))
            c = o
    layers.append(conv_norm(c, 1280, 1, 1, 1, True))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, v["classes"]))


class ChannelNorm(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNeXtBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.depthwise, self.norm = nn.Conv2d(c, c, 7, padding=3, groups=c), nn.LayerNorm(c)
        self.mlp, self.scale = FeedForward(c, 4 * c, F.gelu), nn.Parameter(torch.full((c,), 0.1))

    def forward(self, x):
        y = self.mlp(self.norm(self.depthwise(x).permute(0, 2, 3, 1))) * self.scale
        return x + y.permute(0, 3, 1, 2)


class Mean(nn.Module):
    def forward(self, x):
        return x.mean((2, 3))


def convnext(v):
    c = v["C"]
    layers = [nn.Conv2d(3, c, 4, 4), ChannelNorm(c)]
    for s, n in enumerate((1, 1, 3, 1)):
        if s > 0:
            layers += [ChannelNorm(c), nn.Conv2d(c, 2 * c, 2, 2)]
            c *= 2
        layers += [ConvNeXtBlock(c) for _ in range(n * v["depth"])]
    return nn.Sequential(*layers, Mean(), nn.LayerNorm(c), nn.Linear(c, v["classes"]))
