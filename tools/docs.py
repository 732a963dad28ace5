#!/usr/bin/python3
"""tools/docs.py [--update | --selftest] -- keep the documentation true.

docs/ir.md      the table between the marks "ops: begin" and "ops: end" is made from src/ir/ops.def
all pages       files that they name, such as src/ir/ops.def, pass/fuse.c or quern/nn.h, files that they link
                and targets of make are there
docs/pytorch.md has every function of tensor.h, nn.h, optim.h and grad.h, and none that no header has
docs/tour.md    fenced blocks are run:
docs/nn.md, docs/io.md,
docs/own-loop.md
README.md         ```c with a main   is compiled against build/libquern.a and run; a ```text block that follows it
                                      directly is what it prints
                  ```console          lines "$ command" are run in the root with build/ first in PATH; the other lines
                                      are what they print; a line "..." stands for any lines
                  other blocks        are left alone
--update rewrites the table and the printed lines instead of comparing; blocks that hold "..." stay as they are.
"""
import difflib
import glob
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BEGIN, END = "<!-- ops: begin (made by tools/docs.py) -->", "<!-- ops: end -->"
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```[ \t]*$", re.M | re.S)


# ---- the table of operations

def op_rows(text):
    """The rows of ops.def as lists of fields, with comments as one-field lists that head a group."""
    for match in re.finditer(r"^/\*(.*?)\*/|^OP\((.*)\)$", text, re.M):
        if match.group(1) is not None:
            yield [match.group(1).strip()]
        else:
            fields, equation = match.group(2).rsplit('"', 2)[0], match.group(2).rsplit('"', 2)[1]
            yield [field.strip() for field in fields.rstrip(", ").split(",")] + [equation]


def op_table(text):
    """Markdown of ops.def: a table for each group."""
    text = re.sub(r"\A/\*.*?\*/", "", text, count=1, flags=re.S)
    out, count = [], 0
    for row in op_rows(text):
        if len(row) == 1:
            out += ["", "### " + row[0][0].upper() + row[0][1:], "",
                    "| op | sources | results | dtypes | gradient | attributes | meaning |", "|---|---|---|---|---|---|---|"]
            continue
        name, short, sources, results, _infer, dtypes, grad, flags, attributes, equation = row
        number = {"-1": "any"}
        notes = [{"COMM": "commutes", "IDENTITY": "never merged"}[flag] for flag in re.findall(r"[A-Z]+", flags)]
        out.append("| `%s` | %s | %s | %s | %s | %s | %s |" % (
            short, number.get(sources, sources), number.get(results, results), dtypes.lower(),
            "yes" if grad == "GRAD" else "zero", ", ".join(re.findall(r"A\((\w+)\)", attributes)) or "-",
            (equation + "".join("; " + note for note in notes)).replace("|", "\\|")))
        count += 1
    return "\n".join(["%d operations." % count] + out) + "\n"


def ir_page(page, ops_text):
    """The page with the table between its marks renewed."""
    if BEGIN not in page or END not in page:
        raise ValueError("docs/ir.md: the marks are missing: %s ... %s" % (BEGIN, END))
    head, rest = page.split(BEGIN, 1)
    return head + BEGIN + "\n" + op_table(ops_text) + END + rest.split(END, 1)[1]


# ---- PyTorch's names

COMPLETE = ("tensor.h", "nn.h", "optim.h", "grad.h")


def pytorch_problems(page, headers):
    """What a page of names lacks, and what it has that no header has. headers: texts by name."""
    declared = {name: set(re.findall(r"^QUERN_API[^;(]*\b(quern_\w+)\(", text, re.M)) for name, text in headers.items()}
    known = set(re.findall(r"\bquern_\w+", " ".join(headers.values())))
    named = set(re.findall(r"`(quern_\w+)", page))
    lacks = sorted(name for header in COMPLETE for name in declared[header] - named)
    return (["%s has no row" % name for name in lacks] +
            ["%s is in no header" % name for name in sorted(named - known)])


def check_pytorch(page):
    folder = os.path.join(ROOT, "include/quern")
    headers = {}
    for name in os.listdir(folder):
        with open(os.path.join(folder, name)) as file:
            headers[name] = file.read()
    return pytorch_problems(page, headers)


# ---- files that pages name

TOPS = ("bench", "cli", "cmake", "docs", "examples", "include", "src", "tests", "tools")
PATH = re.compile(r"(?<![\w./<>$~-])((?:[\w.*-]+/)+[\w.*-]*)(?![\w.*<>-])")
MAKE = re.compile(r"`make ([a-z][a-z-]*)")
LINK = re.compile(r"\]\(([^)#\s:]+)(?:#[^)\s]*)?\)")


def tracked_pages():
    """The pages of the tree, by path from the root; the changelog tells of files that are gone."""
    pages = glob.glob("*.md", root_dir=ROOT) + glob.glob("docs/**/*.md", root_dir=ROOT, recursive=True)
    for top in TOPS:
        pages += [page for page in glob.glob(top + "/**/README.md", root_dir=ROOT, recursive=True)]
    return sorted(set(pages) - {"CHANGELOG.md"})


def missing_paths(page, name, exists, folders, targets):
    """What a page names that is not there. exists(pattern) tests whether a file or folder matches; folders: those of src/;
    targets: those of make."""
    text, here, out = FENCE.sub("", page), os.path.dirname(name), []
    out += ["make %s: there is no such target" % target for target in MAKE.findall(text) if target not in targets]
    for link in LINK.findall(text):
        if not exists(os.path.normpath(os.path.join(here, link))):
            out.append("%s: the link leads nowhere" % link)
    for path in PATH.findall(LINK.sub("]", text)):
        path = path.rstrip(".")
        first, named = path.split("/")[0], path.split("/")[1]
        if first in TOPS:
            places = [path]
        elif first in folders and named:
            places = ["src/" + path, "tests/" + path, path]
        elif first == "quern" and path.endswith(".h"):
            places = ["include/" + path]
        else:
            continue
        if not any(exists(place) for place in places):
            out.append("%s is not there" % path)
    return out


def check_paths():
    folders = [folder for folder in os.listdir(os.path.join(ROOT, "src")) if folder != "README.md"]
    with open(os.path.join(ROOT, "Makefile")) as file:
        targets = re.findall(r"^([a-z][a-z-]*):", file.read(), re.M)
    exists = lambda path: bool(glob.glob(os.path.join(ROOT, path)))
    passed, failed = 0, 0
    for name in tracked_pages():
        with open(os.path.join(ROOT, name)) as file:
            problems = missing_paths(file.read(), name, exists, folders, targets)
        for problem in problems:
            print("%s: %s" % (name, problem))
        failed += len(problems)
        passed += not problems
    return passed, failed


# ---- blocks that are run

def shell(command):
    env = dict(os.environ, PATH=os.path.join(ROOT, "build") + os.pathsep + os.environ["PATH"], LC_ALL="C")
    run = subprocess.run(command, shell=True, cwd=ROOT, env=env, text=True, timeout=300,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return run.returncode, run.stdout


def run_program(source):
    """Compiles a program as a user would and runs it: (exit status, output)."""
    with tempfile.TemporaryDirectory() as folder:
        with open(folder + "/program.c", "w") as file:
            file.write(source)
        rc, out = shell("gcc -std=c17 -Wall -Wextra -Werror -Iinclude %s/program.c build/libquern.a -ljansson -lm "
                        "-pthread -o %s/program" % (folder, folder))
        return (rc, "does not compile:\n" + out) if rc else shell(folder + "/program")


def run_console(block):
    """The block with what its commands print now, and the commands that failed."""
    out, failed = [], []
    for command in re.findall(r"^\$ (.*(?:\\\n.*)*)", block, re.M):
        rc, text = shell(command)
        out.append("$ " + command + "\n" + text + ("" if not text or text.endswith("\n") else "\n"))
        if rc != 0:
            failed.append("%s: exit status %d" % (command, rc))
    return "".join(out), failed


def same(expected, got):
    """Whether got is expected, where a line "..." of expected stands for any lines."""
    parts = re.split(r"^\.\.\.\n", expected, flags=re.M)
    return re.fullmatch("(?:.*\n)*?".join(map(re.escape, parts)), got) is not None


def run_page(page):
    """Runs the blocks of a page: (the page with what they print now, problems, number of blocks run)."""
    problems, ran, out, position, program = [], 0, [], 0, None
    for match in FENCE.finditer(page):
        language, body = match.group(1), match.group(2)
        directly = page[position:match.start()].strip() == ""
        got, where = None, "line %d" % (page.count("\n", 0, match.start()) + 1)
        if language == "c" and re.search(r"\bmain\(", body):
            rc, program = run_program(body)
            ran += 1
            if rc != 0:
                problems.append("%s: the program fails (%d): %s" % (where, rc, program))
        elif language == "text" and program is not None and directly:
            got, program = program, None
        else:
            program = None
        if language == "console":
            got, failed = run_console(body)
            ran += 1
            problems += [where + ": " + problem for problem in failed]
        if got is not None and not same(body, got):
            diff = "".join(difflib.unified_diff(body.splitlines(True), got.splitlines(True), "the page", "now"))
            problems.append("%s: prints something else now (make docs):\n%s" % (where, diff))
        keep = got is None or "...\n" in body
        out += [page[position:match.start(2)], body if keep else got, page[match.end(2):match.end()]]
        position = match.end()
    return "".join(out) + page[position:], problems, ran


# ---- the program

def check(update):
    passed, failed = check_paths()
    for name in ("docs/ir.md", "docs/tour.md", "docs/nn.md", "docs/io.md", "docs/own-loop.md", "docs/pytorch.md", "docs/cli.md", "README.md"):
        path = os.path.join(ROOT, name)
        try:
            with open(path) as file:
                page = file.read()
            if name == "docs/ir.md":
                with open(os.path.join(ROOT, "src/ir/ops.def")) as file:
                    new, problems, ran = ir_page(page, file.read()), [], 1
                if new != page:
                    problems = ["the table of operations is not that of src/ir/ops.def (make docs)"]
            elif name == "docs/pytorch.md":
                new, problems, ran = page, check_pytorch(page), 1
            else:
                new, problems, ran = run_page(page)
                if ran == 0:
                    problems.append("nothing to run: it should hold a ```c or ```console block")
        except (OSError, ValueError) as error:
            new, problems, ran = None, [str(error)], 0
        if update and new is not None and new != page:
            with open(path, "w") as file:
                file.write(new)
            print("%s: rewritten" % name)
            problems = [problem for problem in problems if "(make docs)" not in problem]
        for problem in problems:
            print("%s: %s" % (name, problem))
        failed += len(problems)
        passed += max(ran - len(problems), 0)
    print("%d passed, %d failed" % (passed, failed))
    return failed != 0


def selftest():
    """Each kind of check passes on something right and fails on something wrong."""
    ops = '/* head */\n\n/* leaves */\nOP(ADD, add, 2, 1, PAIR, NUM, GRAD, COMM, A(x) | A(y), "y = |a, b|")\n'
    page = ir_page("a\n%s\n%s\nb\n" % (BEGIN, END), ops)
    hello = '#include <stdio.h>\nint main(void) { puts("hi"); return 0; }\n'
    named = {name: "" for name in COMPLETE}
    named["nn.h"] = "QUERN_API quern_tensor *quern_nn_a(int x);\nQUERN_API size_t\nquern_nn_b(int x);\n"
    there = {"src/ir/ops.def", "src/pass", "docs/gpu.md", "include/quern/nn.h", "tests/op/*.txt"}.__contains__
    paths = lambda page: missing_paths(page, "docs/a.md", there, ["ir", "pass"], ["test-cuda"])
    results = [
        paths("`src/ir/ops.def`, ir/ops.def, `quern/nn.h`, `tests/op/*.txt`, [gpu](gpu.md#bits), and/or, 1/2, a `src/pass`, src/<name>.c.") == [],
        paths("`src/ir/x.def`.") == ["src/ir/x.def is not there"],
        paths("see ir/x.def, or `quern/x.h`") == ["ir/x.def is not there", "quern/x.h is not there"],
        paths("`make test-cuda`, `make test`.") == ["make test: there is no such target"],
        paths("[gpu](cpu.md)") == ["cpu.md: the link leads nowhere"],
        paths("```sh\ncat src/ir/x.def\n```\n") == [],
        pytorch_problems("`quern_nn_a(x)`, `quern_nn_b`", named) == [],
        pytorch_problems("`quern_nn_a`", named) == ["quern_nn_b has no row"],
        pytorch_problems("`quern_nn_a`, `quern_nn_b`, `quern_c`", named) == ["quern_c is in no header"],
        "| `add` | 2 | 1 | num | yes | x, y | y = \\|a, b\\|; commutes |" in page and ir_page(page, ops) == page,
        ir_page(page, ops.replace("NUM", "ANY")) != page,
        run_page("```console\n$ echo a; echo b\na\nb\n```\n")[1] == [],
        run_page("```console\n$ seq 9\n1\n...\n9\n```\n")[1] == [],
        len(run_page("```console\n$ seq 9\n1\n...\n8\n```\n")[1]) == 1,
        len(run_page("```console\n$ echo a\nb\n```\n")[1]) == 1,
        run_page("```console\n$ echo a\nb\n```\n")[0] == "```console\n$ echo a\na\n```\n",
        len(run_page("```console\n$ false\n```\n")[1]) == 1,
        run_page("```sh\n$ false\n```\n")[1:] == ([], 0),
        run_page("```c\n%s```\n\n```text\nhi\n```\n" % hello)[1] == [],
        len(run_page("```c\n%s```\n\n```text\nho\n```\n" % hello)[1]) == 1,
        len(run_page("```c\n%s```\n" % hello.replace("return 0", "return 3"))[1]) == 1,
        len(run_page("```c\n%s```\n" % hello.replace("0;", "0"))[1]) == 1,
    ]
    for number, good in enumerate(results):
        if not good:
            print("selftest: case %d fails" % number)
    print("%d passed, %d failed" % (sum(results), len(results) - sum(results)))
    return not all(results)


if __name__ == "__main__":
    if sys.argv[1:] not in ([], ["--update"], ["--selftest"]):
        sys.exit(__doc__)
    sys.exit(selftest() if sys.argv[1:] == ["--selftest"] else check(sys.argv[1:] == ["--update"]))
