#!/usr/bin/python3
"""tools/api.py [--update | --selftest | --no-libraries] -- one table of the public functions, and what follows from it.

include/quern/api.def has a row FUNCTION(header, name, kind, since) for every public function. The errors of a BUILDER
carry the caller's file and line; everything else is PLAIN. Checked against the table, or made from it by --update:

  the headers            declare these functions, each in its header
  place.h, nn_place.h    have the line of every builder, and no others
  docs/reference.md      has every function with its declaration and the comment of its header
  tests/api/wrong_*.def  have two rows for every function, hostile.def one for every builder of tensor.h
  libquern.so, .a        export these functions and nothing else (in build/; not with --no-libraries)

--update adds functions that are new, with the present version, and removes what is gone; look at the difference.
"""
import collections
import pathlib
import re
import subprocess
import sys
import tempfile

PLACES = {"tensor.h": "place.h", "nn.h": "nn_place.h"}
ROW = re.compile(r'^FUNCTION\((\w+), (\w+), (BUILDER|PLAIN), "([\d.]+)"\)$')
# Builders return a tensor, a scope, a source of random numbers, a status, or nothing.
BUILDS = re.compile(r"QUERN_API (quern_(tensor \*|scope \*|random |status )|void ) *quern_\w+\(")

Function = collections.namedtuple("Function", "header name declaration comment")
Row = collections.namedtuple("Row", "header name kind since")


def parse_header(path):
    """The functions of a header, in order, each with its declaration and the comment behind it, or the last before."""
    found, comment, text = [], "", path.read_text()
    token = re.compile(r"/\*.*?\*/|QUERN_API ([^;]*?\b(quern_\w+)\([^;]*);([ \t]*/\*.*?\*/)?", re.S)
    for match in token.finditer(text, text.find("*/") + 1):  # what the header begins with is about the file
        if match.group(2):
            words = " ".join(match.group(1).replace("QUERN_NODISCARD", "").split())
            found.append(Function(path.name, match.group(2), words, strip(match.group(3) or "") or comment))
        elif match.group(0).startswith("/* ----"):
            comment = ""
        elif match.start() == 0 or text[match.start() - 1] == "\n":  # not one of a struct's members
            comment = strip(match.group(0))
    return found


def strip(comment):
    comment = re.sub(r"^\s*/\*\s*|\s*\*/\s*$", "", comment)
    return " ".join(re.sub(r"^\*\* ?", "", line.strip()) for line in comment.splitlines()).strip()


def headers(root):
    return sorted(path for path in (root / "include/quern").glob("*.h") if path.name not in PLACES.values())


def functions(root):
    return [function for header in headers(root) for function in parse_header(header)]


def read_table(root, wrong):
    rows, path = [], root / "include/quern/api.def"
    for number, line in enumerate(path.read_text().splitlines() if path.exists() else [], 1):
        match = ROW.match(line)
        if match:
            rows.append(Row(match.group(1) + ".h", *match.groups()[1:]))
        elif line.startswith("FUNCTION"):
            wrong.append(f"api.def:{number}: not a row: {line}")
    return rows


def kind_of(function):
    builds = BUILDS.match("QUERN_API " + function.declaration + "(") if function.header in PLACES else None
    return "BUILDER" if builds else "PLAIN"


def version(root):
    text = (root / "include/quern/version.h").read_text()
    return ".".join(re.search(f"QUERN_VERSION_{part} (\\d+)", text).group(1) for part in ("MAJOR", "MINOR", "PATCH"))


def table_text(root, rows, found):
    known = {row.name: row for row in rows}
    lines = [
        "/* quern/api.def -- the table of public functions: FUNCTION(header, name, kind, since)",
        "** The errors of a BUILDER carry the caller's file and line. tools/api.py checks headers, libraries, tests",
        "** and docs/reference.md against this table, and --update writes what follows from it.",
        "*/",
    ]
    header = None
    for function in found:
        if function.header != header:
            header = function.header
            lines += ["", f"/* {header} */"]
        row = known.get(function.name)
        kind, since = (row.kind, row.since) if row else (kind_of(function), version(root))
        lines.append(f'FUNCTION({header[:-2]}, {function.name}, {kind}, "{since}")')
    return "\n".join(lines) + "\n"


def place_text(root, header, rows):
    """The place header with one line for each builder: what stands before and behind the lines is kept."""
    text = (root / "include/quern" / PLACES[header]).read_text()
    lines = [f"#define {row.name}(...) (quern_place_set(__FILE__, __LINE__), {row.name}(__VA_ARGS__))"
             for row in rows if row.header == header and row.kind == "BUILDER"]
    parts = re.split(r"(?:^#define quern_\w+\(\.\.\.\).*\n)+", text, maxsplit=1, flags=re.M)
    return text if len(parts) != 2 else parts[0] + "".join(line + "\n" for line in lines) + parts[1]


def wrap(text, width=118):
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    return lines + [line] if line else lines


def reference_text(rows, found):
    since = {row.name: row.since for row in rows}
    first = min(since.values(), default="")
    lines = ["# Reference", "", *wrap(
        "Every public function, by header; one comment may speak of several. Made by `tools/api.py --update` from "
        "the headers and [api.def](../include/quern/api.def). "
        f"All are there since {first}, unless another version is named."), ""]
    header, comment = None, None
    for i, function in enumerate(found):
        if function.header != header:
            header, comment = function.header, None
            lines += [f"## quern/{header}", ""]
        if function.comment != comment or comment is None:
            escaped = re.sub(r"([*_<>\[\]|])", r"\\\1", function.comment)
            lines += [*wrap(escaped), ""] if escaped else []
            lines += ["```c"]
        comment = function.comment
        age = since.get(function.name, first)
        lines += wrap(function.declaration + ";" + (f" /* since {age} */" if age != first else ""))
        after = found[i + 1] if i + 1 < len(found) else None
        if after is None or after.comment != comment or after.header != header:
            lines += ["```", ""]
    return "\n".join(lines).rstrip() + "\n"


def exported(library):
    command = ["nm", "-D" if library.suffix == ".so" else "-g", "--defined-only", str(library)]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {words[2] for words in map(str.split, out.splitlines()) if len(words) == 3}


def check_rows(root, rows, wrong):
    """Wrong calls: MACRO(function, mistake, ...) at the beginning of a line."""
    calls, hostile, row = collections.defaultdict(set), set(), re.compile(r"^[A-Z_]+\((quern_\w+), *(\w*)", re.M)
    for path in sorted((root / "tests/api").glob("wrong_*.def")):
        for name, mistake in row.findall(path.read_text()):
            calls[name].add(mistake)
    for name, _ in row.findall((root / "tests/api/hostile.def").read_text()):
        hostile.add(name)
    names = {r.name for r in rows}
    builders = {r.name for r in rows if r.header == "tensor.h" and r.kind == "BUILDER"}
    few = [name for name in sorted(names) if len(calls[name]) < 2]
    wrong += [f"{name}: {len(calls[name])} rows in tests/api/wrong_*.def, not two" for name in few]
    wrong += [f"{name}: rows of wrong calls, but no such function" for name in sorted(set(calls) - names)]
    wrong += [f"{name}: no row in tests/api/hostile.def" for name in sorted(builders - hostile)]
    wrong += [f"{name}: a row in tests/api/hostile.def, but no such builder" for name in sorted(hostile - builders)]


def check(root, libraries):
    wrong = []
    rows, found = read_table(root, wrong), functions(root)
    declared = {(f.header, f.name) for f in found}
    listed = [(row.header, row.name) for row in rows]
    wrong += [f"{h}: {n} is not in api.def (tools/api.py --update)" for h, n in sorted(declared - set(listed))]
    wrong += [f"api.def: {n} is not declared in {h}" for h, n in sorted(set(listed) - declared)]
    wrong += [f"api.def: {n} is there twice" for n, k in collections.Counter(row.name for row in rows).items() if k > 1]
    kinds = {f.name: kind_of(f) for f in found}
    other = [row for row in rows if kinds.get(row.name, row.kind) != row.kind]
    wrong += [f"api.def: {row.name} is {row.kind}, its declaration is of a {kinds[row.name]}" for row in other]
    if not rows:
        wrong.append("api.def has no rows")
    for header in PLACES:
        path = root / "include/quern" / PLACES[header]
        if path.exists() and path.read_text() != place_text(root, header, rows):
            wrong.append(f"{PLACES[header]} is not what api.def says (tools/api.py --update)")
    reference = root / "docs/reference.md"
    if not reference.exists() or reference.read_text() != reference_text(rows, found):
        wrong.append("docs/reference.md is not what headers and api.def say (tools/api.py --update)")
    check_rows(root, rows, wrong)
    names = {row.name for row in rows}
    for library in libraries:
        have = exported(library)
        wrong += [f"{library.name}: {n} is exported, but not public" for n in sorted(have - names)]
        wrong += [f"{library.name}: {n} is public, but not exported" for n in sorted(names - have)]
    return wrong, len(rows)


def update(root):
    found = functions(root)
    (root / "include/quern/api.def").write_text(table_text(root, read_table(root, []), found))
    rows = read_table(root, [])
    for header, place in PLACES.items():
        if (root / "include/quern" / place).exists():
            (root / "include/quern" / place).write_text(place_text(root, header, rows))
    (root / "docs/reference.md").write_text(reference_text(rows, found))


def selftest():
    """A tree of two functions that is good, and what must be found in it once a defect is planted."""
    passed = 0
    good = {
        "include/quern/version.h": "#define QUERN_VERSION_MAJOR 0\n#define QUERN_VERSION_MINOR 1\n"
                                   "#define QUERN_VERSION_PATCH 2\n",
        "include/quern/tensor.h": "/* tensor.h */\n/* -x */\nQUERN_API quern_tensor *quern_neg(quern_tensor *x);\n"
                                  "/* Its name. */\nQUERN_API const char *\n"
                                  "quern_tensor_name(const quern_tensor *x);\n",
        "include/quern/place.h": "#define quern_old(...) (0)\n",
        "tests/api/wrong_a.def": "LOST(quern_neg, null, 1)\nWRONG(quern_neg, bool, 1)\n"
                                 "HOLDS(quern_tensor_name, null, 1)\nHOLDS(quern_tensor_name, poison, 1)\n",
        "tests/api/hostile.def": "BUILD(quern_neg, quern_neg(any()))\n",
        "docs/reference.md": "",
        "lib.c": "int quern_neg(void) { return 1; }\nint quern_tensor_name(void) { return 2; }\n"
                 "static int own(void) { return 3; }\n",
    }
    hidden = '__attribute__((visibility("hidden"))) int helper(void) { return 3; }\n'
    plants = [  # file, pattern, replacement, words of what must be found; None: nothing
        (None, "", "", None),
        ("include/quern/api.def", r"FUNCTION\(tensor, quern_neg.*\n", "", "quern_neg is not in api.def"),
        ("include/quern/api.def", ", BUILDER", ", PLAIN", "quern_neg is PLAIN"),
        ("include/quern/api.def", ", PLAIN", ", OTHER", "not a row"),
        ("include/quern/api.def", r"(FUNCTION\(tensor, quern_neg.*\n)", r"\1\1", "is there twice"),
        ("include/quern/tensor.h", "quern_neg", "quern_abs", "quern_neg is not declared in tensor.h"),
        ("include/quern/place.h", "__LINE__", "0", "place.h is not what"),
        ("docs/reference.md", "Its name", "Her name", "docs/reference.md is not what"),
        ("tests/api/wrong_a.def", r"WRONG\(", " WRONG(", "quern_neg: 1 rows"),
        ("tests/api/wrong_a.def", "neg, bool", "neg, null", "quern_neg: 1 rows"),
        ("tests/api/wrong_a.def", "quern_tensor_name, poison", "quern_gone, poison", "quern_gone: rows of wrong calls"),
        ("tests/api/hostile.def", "BUILD", "#", "quern_neg: no row in tests/api/hostile.def"),
        ("tests/api/hostile.def", r"\Z", "BUILD(quern_abs, 0)\n", "quern_abs: a row in"),
        ("lib.c", "quern_neg", "neg", "quern_neg is public, but not exported"),
        ("lib.c", r"\Z", "int quern_more(void) { return 4; }\n", "quern_more is exported, but not public"),
        ("lib.c", r"\Z", "int helper(void) { return 4; }\n", "libq.a: helper is exported, but not public"),
        ("lib.c", r"\Z", hidden, "libq.a: helper is exported, but not public"),  # it was not made local
    ]
    for file, pattern, replacement, words in plants:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name, text in good.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
            update(root)
            if file:
                text = (root / file).read_text()
                planted = re.sub(pattern, replacement, text, count=1)
                assert planted != text, f"selftest: nothing to plant in {file}: {pattern}"
                (root / file).write_text(planted)
            subprocess.run(["gcc", "-w", "-fPIC", "-c", "lib.c"], cwd=root, check=True)
            subprocess.run(["gcc", "-shared", "lib.o", "-o", "libq.so"], cwd=root, check=True)
            subprocess.run(["ar", "rc", "libq.a", "lib.o"], cwd=root, check=True)
            wrong, _ = check(root, [root / "libq.so", root / "libq.a"])
            seen = any(words in line for line in wrong) if words else not wrong
            if not seen:
                print(f"selftest: {file}: {pattern}: found {wrong}, not {words}", file=sys.stderr)
                return 1
            passed += 1
    print(f"{passed} passed, 0 failed")
    return 0


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    if sys.argv[1:] == ["--selftest"]:
        return selftest()
    if sys.argv[1:] == ["--update"]:
        update(root)
    elif sys.argv[1:] not in ([], ["--no-libraries"]):
        print(__doc__, file=sys.stderr)
        return 2
    libraries = [] if sys.argv[1:] else [root / "build/libquern.so", root / "build/libquern.a"]
    wrong, n = check(root, libraries)
    print("\n".join(wrong[:100] + [f"api: {n} functions"]) if wrong else f"api: {n} functions")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
