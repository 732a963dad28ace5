"""bench/peers/zoo_pictures.py -- the zoo's networks whose answers are images, in PyTorch (cli/zoo_pictures.c)"""
import torch
import torch.nn.functional as F
from torch import nn

from zoo_text import Attention


def double_conv(c, o):
    return nn.Sequential(nn.Conv2d(c, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(),
                         nn.Conv2d(o, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU())


class UNet(nn.Module):
    def __init__(self, v):
        super().__init__()
        widths = [v["C"] << i for i in range(v["levels"] + 1)]
        self.down = nn.ModuleList(double_conv(c, o) for c, o in zip([3] + widths, widths[:-1]))
        self.middle = double_conv(widths[-2], widths[-1])
        self.grow = nn.ModuleList(nn.ConvTranspose2d(2 * c, c, 2, 2) for c in widths[:-1])
        self.up = nn.ModuleList(double_conv(2 * c, c) for c in widths[:-1])
        self.out = nn.Conv2d(v["C"], 2, 1)

    def forward(self, x):
        skips = []
        for down in self.down:
            skips.append(down(x))
            x = F.max_pool2d(skips[-1], 2)
        x = self.middle(x)
        for grow, up, skip in reversed(list(zip(self.grow, self.up, skips))):
            x = up(torch.cat((skip, grow(x)), 1))
        return self.out(x).permute(0, 2, 3, 1)


# ---- diffusion -------------------------------------------------------------------------------------------------------


class TimeBlock(nn.Module):
    def __init__(self, c, o, time):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, c), nn.GroupNorm(8, o)
        self.conv1, self.conv2 = nn.Conv2d(c, o, 3, padding=1), nn.Conv2d(o, o, 3, padding=1)
        self.time, self.around = nn.Linear(time, o), nn.Conv2d(c, o, 1) if c != o else nn.Identity()

    def forward(self, x, time):
        y = self.conv1(F.silu(self.norm1(x))) + self.time(time)[:, :, None, None]
        return self.around(x) + self.conv2(F.silu(self.norm2(y)))


class PixelAttention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.norm, self.attn = nn.GroupNorm(8, c), Attention(c, 4)

    def forward(self, x):
        y = self.attn(self.norm(x).flatten(2).transpose(1, 2))
        return x + y.transpose(1, 2).reshape(x.shape)


class Diffusion(nn.Module):
    def __init__(self, v):
        super().__init__()
        c = self.width = v["C"]
        t, widths = 4 * c, (c, 2 * c, 2 * c)
        self.time = nn.Sequential(nn.Linear(c, t), nn.SiLU(), nn.Linear(t, t), nn.SiLU())
        self.first, self.norm = nn.Conv2d(3, c, 3, padding=1), nn.GroupNorm(8, c)
        self.last = nn.Conv2d(c, 3, 3, padding=1)
        self.down = nn.ModuleList()
        for before, o in zip((c, c, 2 * c), widths):
            self.down.append(nn.ModuleList((TimeBlock(before, o, t), TimeBlock(o, o, t))))
        self.halve = nn.ModuleList(nn.Conv2d(o, o, 3, 2, 1) for o in widths[:2])
        self.attend = nn.ModuleList(PixelAttention(2 * c) for _ in range(3))
        self.middle = nn.ModuleList(TimeBlock(2 * c, 2 * c, t) for _ in range(2))
        self.up = nn.ModuleList(TimeBlock(a + o, o, t) for a, o in ((2 * c, c), (2 * c, 2 * c), (2 * c, 2 * c)))
        self.grow = nn.ModuleList(nn.Conv2d(o, o, 3, padding=1) for o in widths[1:])
        self.register_buffer("rates", torch.exp(torch.arange(c // 2) * (-8 / c)))

    def forward(self, x, time):
        angle = 100 * time * self.rates
        time = self.time(torch.cat((angle.sin(), angle.cos()), 1).to(x.dtype))
        x, skips = self.first(x), []
        for i, (a, b) in enumerate(self.down):
            x = b(a(x, time), time)
            if i == 2:
                x = self.attend[0](x)
            skips.append(x)
            if i < 2:
                x = self.halve[i](x)
        x = self.middle[1](self.attend[1](self.middle[0](x, time)), time)
        for i in (2, 1, 0):
            x = self.up[i](torch.cat((x, skips[i]), 1), time)
            if i == 2:
                x = self.attend[2](x)
            if i > 0:
                x = self.grow[i - 1](F.interpolate(x, scale_factor=2.0))
        return self.last(F.silu(self.norm(x)))


# ---- DCGAN -----------------------------------------------------------------------------------------------------------


def generator(v):
    layers, before = [], v["Z"]
    for i, times in enumerate((8, 4, 2, 1)):
        o = times * v["C"]
        layers += [nn.ConvTranspose2d(before, o, 4, 1 if i == 0 else 2, 0 if i == 0 else 1, bias=False),
                   nn.BatchNorm2d(o), nn.ReLU()]
        before = o
    return nn.Sequential(*layers, nn.ConvTranspose2d(before, 3, 4, 2, 1, bias=False), nn.Tanh())


class Discriminator(nn.Module):
    def __init__(self, v):
        super().__init__()
        widths = [3] + [v["C"] << i for i in range(4)] + [1]
        self.convs = nn.ParameterList(torch.randn(o, c, 4, 4) * 0.02 for c, o in zip(widths, widths[1:]))
        self.scales = nn.ParameterList(torch.ones(o) for o in widths[2:5])
        self.shifts = nn.ParameterList(torch.zeros(o) for o in widths[2:5])

    def forward(self, x, frozen):
        value = (lambda w: w.detach()) if frozen else (lambda w: w)
        for i, w in enumerate(self.convs):
            x = F.conv2d(x, value(w), None, 2 if i < 4 else 1, 1 if i < 4 else 0)
            if 0 < i < 4:
                x = F.batch_norm(x, None, None, value(self.scales[i - 1]), value(self.shifts[i - 1]), True)
            if i < 4:
                x = F.leaky_relu(x, 0.2)
        return x


def adversarial(logits, truth):
    return F.binary_cross_entropy_with_logits(logits, torch.full_like(logits, truth))


class DCGAN(nn.Module):
    """In training the discriminator's loss of images and of what is generated, and the generator's."""

    def __init__(self, v):
        super().__init__()
        self.generator = generator(v)
        self.discriminator = Discriminator(v) if v["train"] else None

    def forward(self, noise, real=None):
        fake = self.generator(noise)
        if real is None:
            return fake
        d = self.discriminator
        real, own = adversarial(d(real, False), 1.0), adversarial(d(fake.detach(), False), 0.0)
        return real + own + adversarial(d(fake, True), 1.0)


# ---- a variational autoencoder ---------------------------------------------------------------------------------------


class VAE(nn.Module):
    def __init__(self, v):
        super().__init__()
        c, z, self.side = v["C"], v["Z"], v["size"] // 8
        widths, flat = (3, c, 2 * c, 4 * c), 4 * c * self.side ** 2
        self.encoder = nn.ModuleList(nn.Conv2d(a, b, 3, 2, 1) for a, b in zip(widths, widths[1:]))
        self.moments, self.code = nn.Linear(flat, 2 * z), nn.Linear(z, flat)
        widths = (4 * c, 2 * c, c, 3)
        self.decoder = nn.ModuleList(nn.ConvTranspose2d(a, b, 4, 2, 1) for a, b in zip(widths, widths[1:]))

    def forward(self, image, train=False):
        x = image
        for layer in self.encoder:
            x = F.relu(layer(x))
        mean, log_var = self.moments(x.flatten(1)).chunk(2, 1)
        code = mean + torch.randn_like(mean) * torch.exp(0.5 * log_var) if train else mean
        x = F.relu(self.code(code).view(len(x), -1, self.side, self.side))
        for i, layer in enumerate(self.decoder):
            x = F.relu(layer(x)) if i < 2 else layer(x)
        if not train:
            return x
        divergence = -0.5 * (1 + log_var - mean.square() - log_var.exp()).mean()
        return F.mse_loss(x, image) + divergence
