#!/usr/bin/env python3
"""bench/kernels.py [--bytes B/s] [--flops FLOP/s] < log -- the kernels of a run's last step, those that take most first.

The log is what QUERN_DEBUG=2 writes. Floor: the kernel's bytes, read and written once, at the rate of copies, or its operations at the rate of
products, whichever takes longer; the rates are those that `quern devices` measures (default: an H200, bf16 products).
"""
import argparse
import re
import sys

LINE = re.compile(r"quern: run (\d+)\.(\d+) (k_\S+) (.*): ([0-9.]+) ms, ([0-9.]+) GFLOP/s, ([0-9.]+) GB/s")
SHOWN = 30


def last_step(lines):
    """The launches of the last whole step: from one with the number of the first to the next one."""
    steps, first = [], None
    for line in lines:
        found = LINE.search(line)
        if not found:
            continue
        place = found.group(1, 2)
        first = first or place
        if place == first:
            steps.append([])
        steps[-1].append((found.group(3), found.group(4), *map(float, found.group(5, 6, 7))))
    if not steps:
        sys.exit("kernels.py: no lines of QUERN_DEBUG=2")
    return steps[-1] if len(steps) < 2 or len(steps[-1]) >= len(steps[-2]) else steps[-2]


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--bytes", type=float, default=4.2e12)
    options.add_argument("--flops", type=float, default=865e12)
    rates = options.parse_args()
    kernels = {}  # name: [ms, floor, launches, bound, ops]
    for name, ops, ms, gflops, gbytes in last_step(sys.stdin):
        moved, done = gbytes * ms * 1e6 / rates.bytes * 1e3, gflops * ms * 1e6 / rates.flops * 1e3
        row = kernels.setdefault(name, [0, 0, 0, "memory" if moved >= done else "compute", ops])
        row[0] += ms
        row[1] += max(moved, done)
        row[2] += 1
    rows = sorted(kernels.items(), key=lambda item: -item[1][0])
    print("       ms     floor  ratio times  bound    kernel")

    def show(ms, floor, times, bound, what):
        print(f"{ms:9.3f} {floor:9.3f} {ms / floor if floor else 0:6.2f} {times:5}  {bound:8} {what}")

    for name, (ms, floor, times, bound, ops) in rows[:SHOWN]:
        show(ms, floor, times, bound, f"{name} ({ops[:60]})")
    rest = [row for _, row in rows[SHOWN:]]
    if rest:
        show(sum(r[0] for r in rest), sum(r[1] for r in rest), sum(r[2] for r in rest), "", f"{len(rest)} other kernels")
    every = [row for _, row in rows]
    show(sum(r[0] for r in every), sum(r[1] for r in every), sum(r[2] for r in every), "all", "")


if __name__ == "__main__":
    main()
