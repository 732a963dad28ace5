#!/usr/bin/python3
"""tools/accuracy.py [--update [--peer PYTHON] [--cuda LOG] | --selftest] -- docs/accuracy.md has what kernels measure.

Runs build/querntest --mode ulp for the devices cpu and interp, whose kernels have the same bits on every machine. Each number of the
page must be the one measured, and none may be above its bound in tests/driver/accuracy.def, which querntest itself demands.

--update        writes the tables anew; what is not measured again (CUDA, PyTorch) stays
--peer PYTHON   an interpreter that has PyTorch: its column is measured too
--cuda LOG      what build/querntest --mode ulp --device cuda has printed on a machine with a GPU
"""
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAGE = "docs/accuracy.md"
BEGIN, END = "<!-- accuracy: begin (made by tools/accuracy.py) -->", "<!-- accuracy: end -->"
DTYPES = ("f32", "bf16", "f16", "f64")
NUMBER = r"[-+\w.]+"
ERROR = r"(%s) (ulp of x|ulp of row|ulp|relative) at (%s(?:, %s)?)" % (NUMBER, NUMBER, NUMBER)
LINE = re.compile(r"^(\w+) +(%s) +(?:(\[.*?\]) )?%s \(bound (%s)\)[^;]*(?:; peer %s)?$" % (
    "|".join(DTYPES), ERROR, NUMBER, ERROR))
HEAD = ["function", "x", "error in", "bound", "CPU", "at", "CUDA", "at", "PyTorch", "at"]


def parse(log):
    """The rows of a log, by (function, range, measure, dtype): bound, (error, where), the peer's (error, where) or None."""
    rows = {}
    for match in filter(None, map(LINE.match, log.splitlines())):
        name, dtype, where, error, measure, at, bound, peer, _measure, peer_at = match.groups()
        rows[name, where or "all", measure, dtype] = (bound, shown(error, at), shown(peer, peer_at) if peer else None)
    return rows


def shown(error, at):
    """An error and where it is, as the page has them; without a result where there should be one it is infinite."""
    value = float(error)
    text = "inf" if value == float("inf") else "%.1e" % value if "e" in error or value >= 1e4 else "%.2f" % value
    return text, ", ".join("%.6g" % float(number) for number in at.split(", "))


def tables(cpu, cuda, peer):
    """Markdown: a table for each dtype. cuda, peer: (error, where) by key."""
    out = []
    for dtype in DTYPES:
        out += ["", "## %s" % dtype, "", "| %s |" % " | ".join(HEAD), "|" + "---|" * len(HEAD)]
        for key, (bound, found, _peer) in cpu.items():
            if key[3] == dtype:
                cells = [key[0], key[1], key[2], bound]
                for error, at in (found, cuda.get(key, ("-", "-")), peer.get(key, ("-", "-"))):
                    cells += [error, at]
                out.append("| %s |" % " | ".join(cells))
    return "\n".join(out) + "\n"


def read_tables(page):
    """The columns of a page: cpu, cuda, peer, by key."""
    columns, dtype = ({}, {}, {}), None
    for line in page.splitlines():
        if line.startswith("## "):
            dtype = line[3:]
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) == len(HEAD) and cells[0] not in ("function", "---"):
            for column, at in zip(columns, (4, 6, 8)):
                column[cells[0], cells[1], cells[2], dtype] = (cells[at], cells[at + 1])
    return columns


def differs(expected, got):
    """Whether two errors differ by more than the reference of another C library would."""
    a, b = float(expected), float(got)
    most = max(a, b)
    if most == float("inf"):
        return a != b
    allowed = 0.011 + 0.02 * most if 0.05 <= most < 1e4 else 0.12 * most
    return abs(a - b) > allowed


def problems_of(page, measured, device):
    """What of a page is not what was measured."""
    there = read_tables(page)[0]
    out = ["%s: %s: the page has no row" % (device, " ".join(key)) for key in measured if key not in there]
    out += ["%s: %s: nothing was measured" % (device, " ".join(key)) for key in there if key not in measured]
    for key, (_bound, (error, at), _peer) in measured.items():
        if key in there and differs(there[key][0], error):
            out.append("%s: %s: measured %s at %s, the page has %s" % (device, " ".join(key), error, at, there[key][0]))
    return out


def measure(device, peer=None):
    command = [os.path.join(ROOT, "build/querntest"), "--mode", "ulp", "--device", device]
    if peer:
        command += ["--python", peer, "--peer", os.path.join(ROOT, "tests/oracle/accuracy_torch.py")]
    run = subprocess.run(command, cwd=ROOT, text=True, stdout=subprocess.PIPE)
    failed = [line for line in run.stdout.splitlines() if "FAIL" in line or "repro" in line]
    print("\n".join(failed), end="\n" if failed else "")
    return parse(run.stdout), run.returncode != 0


def check():
    with open(os.path.join(ROOT, PAGE)) as file:
        page = file.read()
    passed = failed = 0
    for device in ("cpu", "interp"):
        rows, bad = measure(device)
        problems = problems_of(page, rows, device)
        for problem in problems:
            print("%s (HINT: tools/accuracy.py --update)" % problem)
        failed += len(problems) + bad
        passed += max(len(rows) - len(problems), 0)
    print("%d passed, %d failed" % (passed, failed))
    return failed != 0


def update(arguments):
    options = dict(zip(arguments[::2], arguments[1::2]))
    path = os.path.join(ROOT, PAGE)
    with open(path) as file:
        page = file.read()
    _cpu, cuda, peer = read_tables(page)
    rows, bad = measure("cpu", options.get("--peer"))
    if "--peer" in options:
        peer = {key: row[2] for key, row in rows.items() if row[2]}
    if "--cuda" in options:
        with open(options["--cuda"]) as file:
            cuda = {key: row[1] for key, row in parse(file.read()).items()}
    head, rest = page.split(BEGIN, 1)
    with open(path, "w") as file:
        file.write(head + BEGIN + "\n" + tables(rows, cuda, peer) + "\n" + END + rest.split(END, 1)[1])
    return bad


def selftest():
    """A log is read, written and found again; what differs is found."""
    log = ("exp         f32  0.841 ulp at 5.88116932 (bound 2); peer 0.558 ulp at 31.8820267\n"
           "pow         f64  1.788 ulp at 0.992503599, 1016.65063 (bound 2)\n"
           "gelu        f32  [-4, -2] 6.13e-04 relative at -3.99 (bound 1e-3); peer inf relative at inf\n"
           "mod         f16  0.900 ulp at 1, 2 (bound 0.5) FAIL: got 1, expected 2; peer 0.500 ulp at 1, 2\n"
           "1 passed, 1 failed\n")
    rows = parse(log)
    page = tables(rows, {}, {key: row[2] for key, row in rows.items() if row[2]})
    results = [
        len(rows) == 4,
        rows["exp", "all", "ulp", "f32"] == ("2", ("0.84", "5.88117"), ("0.56", "31.882")),
        rows["pow", "all", "ulp", "f64"][1] == ("1.79", "0.992504, 1016.65"),
        rows["gelu", "[-4, -2]", "relative", "f32"][2] == ("inf", "inf"),
        problems_of(page, rows, "cpu") == [],
        len(problems_of(page, parse(log.replace("0.841", "0.941")), "cpu")) == 1,
        len(problems_of(page, parse(log.replace("6.13e-04", "9.13e-04")), "cpu")) == 1,
        problems_of(page, parse(log.replace("6.13e-04", "6.14e-04")), "cpu") == [],
        len(problems_of(page, parse(log[log.index("pow"):]), "cpu")) == 1,
        len(problems_of(page.replace("| exp |", "| exp2 |"), rows, "cpu")) == 2,
        read_tables(page)[2]["exp", "all", "ulp", "f32"] == ("0.56", "31.882"),
        differs("1.0e+00", "inf") and not differs("inf", "inf") and differs("0.50", "0.54") and not differs("52.01", "52.02"),
    ]
    for number, good in enumerate(results):
        if not good:
            print("selftest: case %d fails" % number)
    print("%d passed, %d failed" % (sum(results), len(results) - sum(results)))
    return not all(results)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--update"] and len(sys.argv) % 2 == 0:
        sys.exit(update(sys.argv[2:]))
    if sys.argv[1:] not in ([], ["--selftest"]):
        sys.exit(__doc__)
    sys.exit(selftest() if sys.argv[1:] else check())
