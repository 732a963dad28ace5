#!/usr/bin/env python3
"""bench/zoo_page.py ZOO.json [PAGE.html] -- the ratios of `quern bench zoo --json ZOO.json` as a page of one file

A bar is the time of PyTorch's better way over Quern's, on a logarithmic scale; a ring is eager, a diamond compiled."""
import html
import json
import math
import sys

MODES = (("train", "training step"), ("infer B=1 ", "inference, batch 1"), ("infer B=32 ", "inference, batch 32"))
LEFT, PANEL, GAP, ROW, TOP = 138, 270, 40, 24, 56
FAST, SLOW, INK, DIM, GRID = "#1f8a70", "#c8553d", "#1d2733", "#6b7785", "#e3e8ed"
STYLE = f"""
body {{ font: 15px/1.5 system-ui, "Segoe UI", Arial, sans-serif; color: {INK}; background: #f6f8fa; margin: 0 }}
main {{ max-width: 1080px; margin: 0 auto; padding: 36px 24px 60px }}
h1 {{ font-size: 27px; margin: 0 0 4px; letter-spacing: -0.01em }}
h2 {{ font-size: 18px; margin: 34px 0 10px }}
p {{ color: {DIM}; margin: 4px 0 12px; max-width: 76ch }}
.card {{ background: #fff; border: 1px solid {GRID}; border-radius: 10px; padding: 18px 20px; overflow-x: auto }}
.sums {{ display: grid; grid-template-columns: repeat(4, 1fr); gap: 14px; margin: 22px 0 }}
.sums .card {{ padding: 12px 18px }}
.sums b {{ display: block; font-size: 30px; font-weight: 650; font-variant-numeric: tabular-nums }}
.sums span {{ color: {DIM}; font-size: 13px }}
table {{ border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: 13.5px }}
th {{ text-align: right; color: {DIM}; font-weight: 600; padding: 4px 9px; border-bottom: 1px solid {GRID} }}
td {{ text-align: right; padding: 3px 9px; border-bottom: 1px solid #f0f3f5; white-space: nowrap }}
th.group {{ text-align: center }}
th:first-child, td:first-child {{ text-align: left }}
td.least {{ color: {FAST}; font-weight: 600 }}
.failed {{ color: {SLOW} }}
svg text {{ font-family: inherit }}
"""


def geomean(values):
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def times(ratio):
    return "–" if ratio is None else f"{ratio:.2f}×" if ratio < 10 else f"{ratio:.1f}×"


def color(ratio):
    return FAST if ratio >= 1 else SLOW


def ratio_of(row, way):
    return row.get("peers", {}).get(way, {}).get("ratio")


class Scale:
    """Ratios to places in a panel, by their logarithms."""

    def __init__(self, ratios):
        ratios = ratios or [1]
        self.low = math.log2(min(0.5, min(ratios) / 1.1))
        self.high = math.log2(max(2, max(ratios) * 1.35))  # with room for the numbers behind the bars

    def __call__(self, ratio):
        return (math.log2(ratio) - self.low) / (self.high - self.low) * PANEL

    def ticks(self):
        step = max(1, round((self.high - self.low) / 6))
        first = math.ceil(self.low)
        return [2.0 ** i for i in range(first - first % step if first >= 0 else first, math.floor(self.high) + 1)
                if i >= self.low and i % step == 0]


def text(x, y, words, fill=INK, anchor="start", size=13, weight=400):
    return (f'<text x="{x:.1f}" y="{y:.1f}" fill="{fill}" text-anchor="{anchor}" font-size="{size}" '
            f'font-weight="{weight}">{html.escape(words)}</text>')


def bar(scale, left, y, row):
    """A row of a panel: the bar from 1 to the ratio, its number, and both ways of PyTorch."""
    if row is None:
        return ""
    if "failed" in row:
        return text(left + scale(1) + 6, y + 5, "FAILED", SLOW, weight=600)
    best = ratio_of(row, "best")
    if best is None:
        return text(left + scale(1) + 6, y + 5, "no peer", DIM)
    a, b = sorted((scale(1), scale(best)))
    out = [f'<rect x="{left + a:.1f}" y="{y - 7}" width="{max(b - a, 1.5):.1f}" height="14" rx="2" '
           f'fill="{color(best)}" '
           f'fill-opacity="0.82"><title>{html.escape(row["name"] + " " + row["params"])}</title></rect>']
    end = b
    for way in ("eager", "compile"):
        ratio = ratio_of(row, way)
        if ratio is None:
            continue
        x = left + scale(ratio)
        end = max(end, scale(ratio))
        if way == "eager":
            out.append(f'<circle cx="{x:.1f}" cy="{y}" r="4" fill="#fff" stroke="{INK}" stroke-width="1.5"/>')
        else:
            out.append(f'<path d="M{x - 5:.1f} {y} l5 -5 l5 5 l-5 5 z" fill="{INK}"/>')
    out.append(text(left + end + 10, y + 5, times(best), color(best), weight=600))
    return "".join(out)


def chart(names, find, precision):
    ratios = [r for name in names for mode, _ in MODES for row in [find(name, mode, precision)] if row
              for r in [ratio_of(row, way) for way in ("best", "eager", "compile")] if r]
    scale = Scale(ratios)
    height, width = TOP + ROW * (len(names) + 1) + 34, LEFT + 3 * PANEL + 2 * GAP + 20
    out = [f'<svg viewBox="0 0 {width} {height}" width="100%" role="img" aria-label="ratios">']
    for k, (mode, title) in enumerate(MODES):
        left = LEFT + k * (PANEL + GAP)
        out.append(text(left, 18, title, weight=650, size=14))
        for tick in scale.ticks():
            x, strong = left + scale(tick), tick == 1
            out.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 12}" y2="{height - 30}" '
                       f'stroke="{DIM if strong else GRID}" stroke-width="{1.2 if strong else 1}"/>')
            out.append(text(x, TOP - 18, f"{tick:g}×", DIM, "middle", 11))
        rows = [find(name, mode, precision) for name in names]
        for i, row in enumerate(rows):
            out.append(bar(scale, left, TOP + 6 + ROW * i, row))
        mean = geomean([r for row in rows if row for r in [ratio_of(row, "best")] if r])
        if mean:
            y = TOP + 10 + ROW * len(names)
            a, b = sorted((scale(1), scale(mean)))
            out.append(f'<rect x="{left + a:.1f}" y="{y - 8}" width="{max(b - a, 1.5):.1f}" height="16" rx="2" '
                       f'fill="{color(mean)}"/>' + text(left + b + 8, y + 5, times(mean), color(mean), weight=700))
    for i, name in enumerate(names):
        out.append(text(LEFT - 12, TOP + 11 + ROW * i, name, anchor="end"))
    out.append(text(LEFT - 12, TOP + 15 + ROW * len(names), "geometric mean", anchor="end", weight=700, size=12))
    y = height - 8
    out.append(f'<circle cx="{LEFT + 5}" cy="{y - 4}" r="4" fill="#fff" stroke="{INK}" stroke-width="1.5"/>')
    out.append(text(LEFT + 15, y, "PyTorch eager", DIM, size=12))
    out.append(f'<path d="M{LEFT + 115} {y - 4} l5 -5 l5 5 l-5 5 z" fill="{INK}"/>')
    out.append(text(LEFT + 131, y, "torch.compile", DIM, size=12))
    out.append(text(LEFT + 232, y, "bar: the better of the two; to the right of 1× Quern is faster", DIM, size=12))
    return "".join(out) + "</svg>"


def cells(values, digits):
    """Table cells, the least one marked."""
    known = [v for v in values if v is not None]
    return "".join("<td>–</td>" if v is None else
                   f'<td{" class=least" if v == min(known) else ""}>{v:,.{digits}f}</td>' for v in values)


def table(names, find, precision):
    groups = ("time of a step, ms", "memory, MB", "to the end of the first step, s")
    head = ("<tr><th></th><th></th>" + "".join(f'<th class="group" colspan="3">{group}</th>' for group in groups)
            + "</tr><tr><th>training</th><th>parameters</th>"
            + "<th>Quern</th><th>eager</th><th>compile</th>" * 3 + "</tr>")
    out = []
    for name in names:
        row = find(name, "train", precision)
        if not row or "failed" in row:
            continue
        ms = [row["median_ms"]] + [row["peers"].get(w, {}).get("median_ms") for w in ("eager", "compile")]
        mb = [x and x / 1e6 for x in (row["planned_bytes"], row["eager_bytes"], row["compile_bytes"])]
        first = [row["first_s"], row["eager_first_s"], row["compile_first_s"]]
        numbers = cells(ms, 1) + cells(mb, 0) + cells(first, 1)
        out.append(f'<tr><td>{name}</td><td>{row["parameters"]:,.0f}</td>{numbers}</tr>')
    return f"<table>{head}{''.join(out)}</table>"


def page(data):
    rows = data["rows"]
    names = list(dict.fromkeys(row["name"] for row in rows))

    def find(name, mode, precision):
        return next((r for r in rows if r["name"] == name and (r["params"] + " ").startswith(mode)
                     and f" {precision} " in r["params"]), None)

    def mean(mode):
        return geomean([r for row in rows if row["params"].startswith(mode) for r in [ratio_of(row, "best")] if r])

    sums = [(mean(""), f"all {sum('failed' not in r for r in rows)} cases")] + [(mean(m), title) for m, title in MODES]
    boxes = "".join(f'<div class="card"><b style="color:{color(m or 1)}">{times(m)}</b><span>{words}</span></div>'
                    for m, words in sums)
    threads = max(r["threads"] for r in rows)
    facts = html.escape(f"{data['machine']} · {data.get('device', 'cpu')} · {threads} thread{'s' * (threads > 1)} · "
                        f"{data['date'][:10]}")
    parts = []
    for precision in ("f32", "bf16"):
        if not any(f" {precision} " in r["params"] for r in rows):
            continue
        parts.append(f'<h2>{precision}: how many times as fast as PyTorch</h2>'
                     f'<div class="card">{chart(names, find, precision)}</div>'
                     f'<h2>{precision}: training in numbers</h2><p>Memory of Quern is what its plan has: arena, '
                     'states, constants and scratch. That of PyTorch is the growth of its process, or of its part of '
                     'the card, '
                     f'to the peak.</p><div class="card">{table(names, find, precision)}</div>')
    failed = [r for r in rows if "failed" in r]
    if failed:
        lines = (" ".join((r["name"], r["params"] + ":", r["failed"])) for r in failed)
        items = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
        parts.append(f'<h2>Failed</h2><div class="card failed"><ul>{items}</ul></div>')
    return ('<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Quern: the zoo</title>'
            f'<style>{STYLE}</style></head><body><main><h1>Quern and PyTorch: {len(names)} networks</h1><p>{facts}</p>'
            '<p>A training step is forward, backward, clipping and AdamW. Sides take turns, each in a process of its '
            f'own; a ratio is PyTorch’s time over Quern’s, geometric means below.</p><div class="sums">{boxes}</div>'
            f'{"".join(parts)}</main></body></html>\n')


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    try:
        with open(sys.argv[1], encoding="utf-8") as file:
            data = json.load(file)
    except ValueError:
        data = {}
    if data.get("suite") != "zoo" or not data["rows"]:
        sys.exit(f"{sys.argv[1]} holds no rows of quern bench zoo")
    with open(sys.argv[2], "w", encoding="utf-8") if len(sys.argv) == 3 else sys.stdout as out:
        out.write(page(data))


if __name__ == "__main__":
    main()
