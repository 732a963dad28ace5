#!/usr/bin/python3
"""tests/abi/grow.py FROM TO -- headers of a later version: every struct that has a size gets a member at its end.

What FROM has in quern/*.h is written to TO/quern. Prints how many structs grew; fails when none did.
"""
import pathlib
import re
import sys

STRUCT = re.compile(r"(typedef struct (quern_\w+) \{\n\s*size_t size;.*?)(\n\} \2;)", re.S)


def main() -> int:
    source, target = pathlib.Path(sys.argv[1]) / "quern", pathlib.Path(sys.argv[2]) / "quern"
    target.mkdir(parents=True, exist_ok=True)
    grown = 0
    for header in sorted(source.glob("*.h")):
        text, n = STRUCT.subn(r"\1\n  unsigned char abi_grown[40]; /* of a later version */\3", header.read_text())
        (target / header.name).write_text(text)
        grown += n
    print(f"{grown} structs grew")
    return 0 if grown > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
