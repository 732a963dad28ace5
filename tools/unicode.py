#!/usr/bin/env python3
"""tools/unicode.py [--check] -- write src/io/unicode.def: the letters, numbers, marks and spaces of Unicode, as ranges.

The version is UNICODE below. Python's own unicodedata has that of its release; the package unicodedata2 of the same
version (pip install unicodedata2==16.0.0) is taken when it is there. With --check nothing is written: the exit status says
whether the file is as it would be."""
import pathlib
import sys

UNICODE = "16.0.0"  # that of the regular expressions of HuggingFace's tokenizers 0.23 and of tiktoken 0.12
try:
    import unicodedata2 as unicodedata
except ImportError:
    import unicodedata

# The property White_Space, which is \s; categories Zs, Zl and Zp lack the controls.
SPACES = {*range(0x09, 0x0E), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000}
COLUMNS = 120


LETTERS = {"Lu": "U", "Lt": "U", "Ll": "L", "Lm": "B", "Lo": "B"}


def kind(c):
    category = unicodedata.category(chr(c))
    if c in SPACES:
        return "S"
    return LETTERS.get(category) or (category[0] if category[0] in "MN" else "O")


def ranges():
    """(first code point, kind), each up to the next."""
    last = None
    for c in range(0x110000):
        now = kind(c)
        if now != last:
            yield c, now
        last = now


def text():
    lines = [
        "/* io/unicode.def -- made by tools/unicode.py, Unicode " + UNICODE,
        "** The first code point of each range of one kind, in order: letters (\\p{L}) as U capital (Lu, Lt), L small (Ll) and B",
        "** neither (Lm, Lo); N numbers (\\p{N}), S white space (\\s), M marks (\\p{M}), O all others. */",
    ]
    line = ""
    for first, now in ranges():
        item = f"{now}(0x{first:x})"
        if len(line) + 1 + len(item) > COLUMNS:
            lines.append(line)
            line = item
        else:
            line = f"{line} {item}".strip()
    return "\n".join(lines + [line]) + "\n"


if unicodedata.unidata_version != UNICODE:
    sys.exit(f"tools/unicode.py: this Python has Unicode {unicodedata.unidata_version}, the table is of {UNICODE}")
path = pathlib.Path(__file__).resolve().parent.parent / "src/io/unicode.def"
if "--check" in sys.argv[1:]:
    sys.exit(0 if path.read_text() == text() else f"{path}: differs from Unicode {UNICODE}")
path.write_text(text())
