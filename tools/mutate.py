#!/usr/bin/python3
"""tools/mutate.py -- plant small mutations in the sources and count those that the tests notice.

Each mutant is one change of one line of a folder of src/ (FOLDERS; prof/ measures and is left out). Mutants that do not compile, or that compile to the
same library, are replaced by others. A mutant is noticed when the kill command fails or runs out of time. The choice
depends on --seed and the sources only. Exit status 1 when fewer than 95 % are noticed. Ctrl-C, or --time-limit, stops
early and prints what is known; --resume goes on from there; --again does so too, but tries survivors once more.
"""
import argparse
import bisect
import collections
import contextlib
import glob
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

FOLDERS = ("base", "ir", "tensor", "grad", "nn", "models", "optim", "pass", "kern", "sched", "plan", "codegen", "runtime", "engine", "io", "train")
GOAL = 0.95
COPIED = ("CMakeLists.txt", "cmake", "include", "src", "cli", "tests", "tools", "examples")
Mutation = collections.namedtuple("Mutation", "file start end new kind line")

# ---- what may be changed: text of the same length with everything else blanked out

# Calls whose arguments only make a message, and how many leading arguments count nevertheless.
MESSAGES = {"QUERN_CHECK": 1, "QUERN_ASSERT": 0, "_Static_assert": 0, "base_error": 0, "base_error_v": 0, "base_log": 0,
            "ir_fail": 0, "TENSOR_CHECK": 2, "nn_fail": 0, "nn_wrong": 0, "NN_CHECK": 2}
NOT_CODE = re.compile(r"""/\*.*?\*/ | //[^\n]* | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*' | ^[ \t]*\#(?:\\\n|[^\n])*""",
                      re.X | re.S | re.M)


def blank(text, start, end):
    return text[:start] + re.sub(r"[^\n]", " ", text[start:end]) + text[end:]


def arguments(text, start):
    """The positions of the commas and of the closing bracket of a call whose bracket opens at start."""
    depth, stops = 0, []
    for i in range(start, len(text)):
        if text[i] in "([{":
            depth += 1
        elif text[i] in ")]}":
            depth -= 1
            if depth == 0:
                return stops + [i]
        elif text[i] == "," and depth == 1:
            stops.append(i)
    return stops + [len(text)]


def mask(text):
    """The text without comments, strings, preprocessor lines and arguments of messages."""
    text = NOT_CODE.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)
    for match in list(re.finditer(r"\b(%s)\(" % "|".join(MESSAGES), text)):
        stops = arguments(text, match.end() - 1)
        kept = MESSAGES[match.group(1)]
        text = blank(text, stops[kept - 1] if kept else match.end(), stops[-1])
    return text


# ---- the mutations

SWAPS = {  # kind: {what: its replacements}
    "comparison": {" < ": (" <= ", " >= "), " <= ": (" < ", " > "), " > ": (" >= ", " <= "), " >= ": (" > ", " < "),
                   " == ": (" != ",), " != ": (" == ",)},
    "arithmetic": {" + ": (" - ",), " - ": (" + ",), " * ": (" / ",), " / ": (" * ",), " % ": (" / ",),
                   " += ": (" -= ",), " -= ": (" += ",), " << ": (" >> ",), " >> ": (" << ",)},
    "logic": {" && ": (" || ",), " || ": (" && ",), " & ": (" | ",), " | ": (" & ",)},
}
RETURNS = {"true": "false", "false": "true", "0": "1", "1": "0", "-1": "0", "QUERN_STATUS_OK": "QUERN_STATUS_INTERNAL"}
MINMAX = re.compile(r"(?<![A-Za-z])(min|max|MIN|MAX)(?![A-Za-z])|\bf(min|max)f?\b")
NUMBER = re.compile(r"(?<![\w.])(\d+\.\d*(?:e-?\d+)?|\d+)([uUlLfF]*)(?![\w.])")
STATEMENT = re.compile(r"^[ \t]+((?:[\w.\[\]]|->)+ [-+*/|&^]?= .*;|(?:[\w.\[\]]|->)+\(.*\);|(?:[\w.\[\]]|->)+(?:\+\+|--);)$",
                       re.M)
CLASSES = {"FLOAT": 1, "SIGNED": 2, "UNSIGNED": 4, "INT": 6, "NUM": 7, "BOOL": 8, "BITS": 14, "ANY": 15}  # as in base.h
DTYPES = ("FLOAT", "INT", "NUM", "BOOL", "BITS", "ANY")


def next_number(digits):
    return str(int(digits) + 1) if digits.isdigit() else repr(float(digits) + 1.0)


def in_code(code):
    """(start, end, replacement, kind) of every mutation of masked C text."""
    for kind, table in SWAPS.items():
        for old, news in table.items():
            for match in re.finditer(r"(?<=\s)%s(?=\s)" % re.escape(old.strip()), code):
                for new in news:
                    yield match.start(), match.end(), new.strip(), kind
    for match in re.finditer(r"\b(?:if|while) \(", code):
        stop = arguments(code, match.end() - 1)[-1]
        yield match.end(), stop, "!(%s)" % code[match.end():stop], "condition"
    for match in STATEMENT.finditer(code):
        before = code[:match.start()].rstrip()
        whole = before[-1:] in ";{})" or before.endswith("else")
        if whole and not match.group(1).startswith(("QUERN_ASSERT(", "base_log(")):
            yield match.start(1), match.end(1), ";", "deletion"
    for match in re.finditer(r"\breturn ([\w-]+);", code):
        if match.group(1) in RETURNS:
            yield match.start(1), match.end(1), RETURNS[match.group(1)], "return"
    for match in NUMBER.finditer(code):
        line = code[code.rfind("\n", 0, match.start()) + 1:match.start()]
        if line.endswith("return -"):  # -1 says failure, as does -2
            continue
        if not re.match(r"\s*(?:static )?(?:const )?(?:unsigned |struct )?\w+ \**\w+\[[^\]=]*$", line):  # an array's size
            yield match.start(1), match.end(1), next_number(match.group(1)), "constant"
    for match in MINMAX.finditer(code):
        word = match.group()
        new = re.sub("min|max|MIN|MAX", lambda m: {"min": "max", "max": "min", "MIN": "MAX", "MAX": "MIN"}[m.group()], word)
        yield match.start(), match.end(), new, "minmax"


OPS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "src", "ir", "ops.def")


def admitted(pattern):
    """What the operations of a pattern's left side all admit, as a sum of CLASSES. A select is of bools first."""
    with open(OPS) as file:
        rows = dict(re.findall(r"^OP\(\w+, (\w+),(?:[^,]*,){3} (\w+),", file.read(), re.M))
    mask = CLASSES["BOOL"] if pattern.startswith("select(") else CLASSES["ANY"]
    for op in re.findall(r"(\w+)\(", pattern.split("=")[0]):
        mask &= CLASSES["ANY"] if op == "select" else CLASSES[rows[op]]
    return mask


def in_table(code, text):
    """The mutations of the masked rows of a .def file, whose text is given too."""
    for match in re.finditer(r"\b(?:COMM|IDENTITY)\b", code):
        yield match.start(), match.end(), "0", "table"
    for match in re.finditer(r"(?<=, )(%s)(?=,)" % "|".join(DTYPES), code):
        row = text[text.rfind("\n", 0, match.start()) + 1:text.find("\n", match.start())]
        pattern = re.match(r'PATTERN\(.*"(.*)"\)$', row)
        counts = admitted(pattern.group(1)) if pattern else CLASSES["ANY"]
        for new in DTYPES:
            if CLASSES[new] & counts != CLASSES[match.group()] & counts:  # else it is the same rule
                yield match.start(), match.end(), new, "table"
    for match in NUMBER.finditer(code):
        if match.group(1) != "0" and "TARGET(" not in text:  # 0: none; sizes of caches change no result
            yield match.start(1), match.end(1), next_number(match.group(1)), "table"


def mutations(file, text):
    """All mutations of a file."""
    code = mask(text)
    lines = [match.start() for match in re.finditer("^", text, re.M)]
    for start, end, new, kind in in_table(code, text) if file.endswith(".def") else in_code(code):
        if kind == "condition":
            new = "!(%s)" % text[start:end]
        yield Mutation(file, start, end, new, kind, bisect.bisect_right(lines, start))


def candidates(root, only, seed):
    """The mutations in the order they are tried: all kinds in turn, at most one a line and kind."""
    kinds, rng = collections.defaultdict(list), random.Random(seed)
    files = [path for folder in FOLDERS for ext in ("c", "def")
             for path in glob.glob(os.path.join(root, "src", folder, "**", "*." + ext), recursive=True)]
    for path in sorted(files):
        file = os.path.relpath(path, root)
        if only and not any(file.endswith(name) for name in only):
            continue
        with open(path) as handle:
            for mutation in mutations(file, handle.read()):
                kinds[mutation.kind].append(mutation)
    seen = set()
    for kind in sorted(kinds):
        rng.shuffle(kinds[kind])
    order = []
    while any(kinds.values()):
        for kind in sorted(kinds):
            if kinds[kind]:
                mutation = kinds[kind].pop()
                if (mutation.file, mutation.line, kind) not in seen:
                    seen.add((mutation.file, mutation.line, kind))
                    order.append(mutation)
    return order


# ---- trying them

class Tree:
    """A copy of the sources with a build of its own."""

    def __init__(self, root, folder, kill):
        self.folder, self.kill, self.process = folder, kill, None
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        for name in COPIED:
            source = os.path.join(root, name)
            if os.path.isdir(source):
                shutil.copytree(source, os.path.join(folder, name))
            elif os.path.exists(source):
                shutil.copy(source, folder)

    def run(self, command, timeout=None):
        """The exit status of a command, or None when it took too long; its output is in log.txt."""
        with open(os.path.join(self.folder, "log.txt"), "w") as log:
            self.process = subprocess.Popen(command, shell=True, cwd=self.folder, stdout=log, stderr=log,
                                            stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.stop()
            return None

    def stop(self):
        if self.process and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def must(self, what, command):
        if self.run(command) != 0:
            with open(os.path.join(self.folder, "log.txt")) as log:
                raise RuntimeError("%s fails on the unchanged sources:\n%s" % (what, log.read()[-3000:]))

    def prepare(self):
        """Builds, runs the kill command on the unchanged sources, and returns how long that took."""
        self.must("configuring", "cmake -G Ninja -B build -DCMAKE_BUILD_TYPE=None -DCMAKE_C_FLAGS='-O1 -w' "
                                 "-DCMAKE_C_COMPILER=gcc -DQUERN_ASSERTS=ON")
        self.must("the build", "ninja -C build")
        self.original = self.library()
        start = time.time()
        self.must("the kill command", self.kill.replace("{folder}", "base"))
        return time.time() - start

    def library(self):
        with open(os.path.join(self.folder, "build", "libquern_internal.a"), "rb") as file:
            return hashlib.sha256(file.read()).digest()

    def attempt(self, mutation, timeout):
        """One of: broken (does not compile), same, noticed, survived."""
        path = os.path.join(self.folder, mutation.file)
        with open(path) as file:
            text = file.read()
        with open(path, "w") as file:
            file.write(text[:mutation.start] + mutation.new + text[mutation.end:])
        try:
            if self.run("ninja -C build quern_internal") != 0:
                return "broken"
            if self.library() == self.original:
                return "same"
            if self.run("ninja -C build") != 0:
                return "broken"
            kill = self.kill.replace("{folder}", mutation.file.split("/")[1])
            return "survived" if self.run(kill, timeout) == 0 else "noticed"
        finally:
            with open(path, "w") as file:
                file.write(text)


class Session:
    """Hands mutations to the trees until n of them count."""

    def __init__(self, root, args, order, known):
        self.root, self.args, self.order, self.known = root, args, order, known
        self.results = {}  # mutation: outcome
        self.next, self.flying, self.stopping, self.error = 0, 0, False, None
        self.lock, self.start, self.trees = threading.Lock(), time.time(), []

    def counted(self):
        return sum(outcome in ("noticed", "survived") for outcome in self.results.values())

    def take(self):
        """The next mutation to try, or None when there are enough (or will be), or none are left."""
        while True:
            with self.lock:
                late = self.args.time_limit and time.time() - self.start > self.args.time_limit
                if self.stopping or late or self.counted() >= self.args.n or self.next >= len(self.order):
                    return None
                if self.counted() + self.flying < self.args.n:
                    mutation = self.order[self.next]
                    self.next += 1
                    old = self.known.get(key(self.root, mutation))
                    if old is None:
                        self.flying += 1
                        return mutation
                    self.results[mutation] = old
                    continue
            time.sleep(0.1)

    def record(self, mutation, outcome, log):
        with self.lock:
            self.flying -= 1
            if self.stopping:
                return
            self.results[mutation] = outcome
            log.write(json.dumps([key(self.root, mutation), outcome]) + "\n")
            log.flush()
            if outcome == "survived":
                show(self.root, mutation, " survived")
            done, lived = self.counted(), sum(o == "survived" for o in self.results.values())
            if sys.stdout.isatty():
                print("\r%d of %d, %d survived, %.0f s " % (done, self.args.n, lived, time.time() - self.start),
                      end="", flush=True)
            elif outcome in ("noticed", "survived") and done % 10 == 0:
                print("%d of %d, %d survived, %.0f s" % (done, self.args.n, lived, time.time() - self.start), flush=True)

    def work(self, tree, log):
        try:
            usual = tree.prepare()
            while True:
                mutation = self.take()
                if mutation is None:
                    return
                self.record(mutation, tree.attempt(mutation, max(20.0, 6.0 * usual)), log)
        except (RuntimeError, OSError) as error:
            with self.lock:
                self.error, self.stopping = self.error or error, True

    def run(self, folder):
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, "results.jsonl"), "w") as log:
            for name, outcome in self.known.items():
                log.write(json.dumps([name, outcome]) + "\n")
            self.trees = [Tree(self.root, os.path.join(folder, str(i)), self.args.kill) for i in range(self.args.jobs)]
            threads = [threading.Thread(target=self.work, args=(tree, log)) for tree in self.trees]
            for thread in threads:
                thread.start()
            try:
                for thread in threads:
                    while thread.is_alive():
                        thread.join(0.3)
            except KeyboardInterrupt:
                print("\nstopping")
                self.stopping = True
                for tree in self.trees:
                    tree.stop()
                for thread in threads:
                    thread.join()


def key(root, mutation):
    """A name for a mutation that holds as long as its file does not change."""
    with open(os.path.join(root, mutation.file), "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()[:12]
    return "%s:%s:%d:%d:%s" % (mutation.file, digest, mutation.start, mutation.end, mutation.new)


def show(root, mutation, outcome=""):
    with open(os.path.join(root, mutation.file)) as file:
        text = file.read()
    begin = text.rfind("\n", 0, mutation.start) + 1
    end = text.find("\n", mutation.end)
    print("\n%s:%d: %s%s\n  - %s\n  + %s" % (
        mutation.file, mutation.line, mutation.kind, outcome, text[begin:end].strip().replace("\n", "\n    "),
        (text[begin:mutation.start] + mutation.new + text[mutation.end:end]).strip().replace("\n", "\n    ")), flush=True)


def report(session):
    """Prints the table and the closing line; returns the exit status."""
    if session.error:
        print("mutate: %s" % session.error)
        return 1
    outcomes = collections.Counter(session.results.values())
    kinds = collections.defaultdict(collections.Counter)
    for mutation, outcome in session.results.items():
        kinds[mutation.kind][outcome] += 1
    print("\n%-12s %8s %8s %8s %8s" % ("kind", "noticed", "survived", "same", "broken"))
    for kind in sorted(kinds):
        print("%-12s %8d %8d %8d %8d" % ((kind,) + tuple(kinds[kind][o] for o in ("noticed", "survived", "same", "broken"))))
    survivors = sorted(m for m, outcome in session.results.items() if outcome == "survived")
    if survivors:
        print("\nsurvivors:")
        for mutation in survivors:
            show(session.root, mutation)
    planted, noticed = outcomes["noticed"] + outcomes["survived"], outcomes["noticed"]
    if planted < session.args.n:
        print("\nstopped early: %d of %d" % (planted, session.args.n))
    print("\nmutants: %d planted, %d noticed (%.1f %%)" % (planted, noticed, 100.0 * noticed / max(planted, 1)))
    return 0 if planted and noticed >= GOAL * planted else 1


def main(argv, root=os.path.dirname(os.path.dirname(os.path.abspath(__file__)))):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=200, help="how many mutants count (200)")
    parser.add_argument("--seed", type=int, default=1, help="which ones (1)")
    parser.add_argument("--only", action="append", metavar="FILE", help="only files whose path ends so; may be repeated")
    parser.add_argument("--jobs", type=int, default=2, help="trees that work side by side (2)")
    parser.add_argument("--time-limit", type=float, metavar="SECONDS", help="start no mutant after that long")
    parser.add_argument("--kill", default="tools/kill.sh build {folder}", help="the tests (%(default)s)")
    parser.add_argument("--work", default=os.path.join(root, "build", "mutate"), help="folder of the copies")
    parser.add_argument("--resume", action="store_true", help="keep the outcomes of the last run")
    parser.add_argument("--again", action="store_true", help="keep them, but try survivors once more")
    parser.add_argument("--list", action="store_true", help="print the mutations in order and try none")
    parser.add_argument("--selftest", action="store_true", help="test this program")
    args = parser.parse_args(argv)
    if args.selftest:
        return selftest()
    order = candidates(root, args.only, args.seed)
    if args.list:
        for mutation in order[:args.n]:
            show(root, mutation)
        return 0
    known, results = {}, os.path.join(args.work, "results.jsonl")
    if (args.resume or args.again) and os.path.exists(results):
        with open(results) as file:
            known = {name: outcome for name, outcome in map(json.loads, file)
                     if not (args.again and outcome == "survived")}
    session = Session(root, args, order, known)
    session.run(args.work)
    return report(session)


# ---- the self-test: a library of two functions of which the tests look at one only

SAMPLE = """/* a < b */
int base_seen(int a, int b) {
  if (a < b) {
    a = b + 1;
  }
  return a;
}
int base_unseen(int a, int b) {
  return a - b;
}
"""


def selftest():
    text = '#define X 1 + 2\nint f(void) {\n  QUERN_CHECK(a < b, SHAPE, "x + y", c + d);\n  base_log(1, "%d", e - g);\n}\n'
    kinds = sorted((m.kind, text[m.start:m.end], m.new) for m in mutations("src/base/x.c", text))
    results = [kinds == [("comparison", "<", "<="), ("comparison", "<", ">="), ("deletion", text.split("\n")[2].strip(), ";")],
               len(list(mutations("src/base/x.c", SAMPLE))) == 7]
    with tempfile.TemporaryDirectory() as root:
        os.makedirs(root + "/src/base")
        files = {"src/base/a.c": SAMPLE, "src/t.c": "int base_seen(int, int);\n"
                 "int main(void) { return base_seen(1, 2) != 3 || base_seen(2, 1) != 2 || base_seen(2, 2) != 2; }\n",
                 "CMakeLists.txt": "cmake_minimum_required(VERSION 3.25)\nproject(t C)\nadd_library(quern_internal src/base/a.c)\n"
                 "add_executable(t src/t.c)\ntarget_link_libraries(t quern_internal)\n"}
        for name, content in files.items():
            with open(os.path.join(root, name), "w") as file:
                file.write(content)
        for kill in ("build/t", "true", "false"):
            args = argparse.Namespace(n=100, jobs=2, time_limit=None, kill=kill)
            session = Session(root, args, candidates(root, None, 1), {})
            with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing):
                session.run(root + "/work")
                verdict = report(session)
            lived = {m.kind for m, outcome in session.results.items() if outcome == "survived"}
            tried = session.counted()
            if kill == "build/t":
                results += [tried >= 5, lived == {"arithmetic"}, verdict == 1]
            elif kill == "true":
                results += [len(lived) >= 4 and verdict == 1]
            else:
                results += [session.error is not None and verdict == 1]
    for number, good in enumerate(results):
        if not good:
            print("selftest: case %d fails" % number)
    print("%d passed, %d failed" % (sum(map(bool, results)), sum(not good for good in results)))
    return not all(results)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
