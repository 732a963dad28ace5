#!/usr/bin/env python3
"""Checks safetensors files and checkpoints with a reader and a writer of its own, on NumPy and the standard library.

usage: compare_safetensors.py read FOLDER    checks what tests/io/test_safetensors_reference.c wrote into FOLDER
       compare_safetensors.py write FOLDER   writes the same tensors into FOLDER in forms that Quern does not choose itself
       compare_safetensors.py --selftest     right files pass, planted wrong ones are flagged

Nothing of Quern is used. Formats: https://github.com/huggingface/safetensors ("Format"); the digest is XXH64, written from
the specification of the xxHash project. Where the package safetensors is installed, it has to agree.
"""
import json
import os
import shutil
import struct
import sys
import tempfile

import numpy as np

SIZES = {"F32": 4, "F64": 8, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "I8": 1, "I16": 2, "I32": 4, "I64": 8,
         "U8": 1, "U16": 2, "U32": 4, "U64": 8, "BOOL": 1}
SHAPES = [[], [2, 0], [3, 1, 5], [4, 16]]
PAIRS = {"format": "pt", "note": "a \"quoted\" line\nand \u00fc \U0001f33e"}


def expected():
    """Name -> (dtype, shape, bytes); byte j of tensor i is 37 j + 11 i, of bools its lowest bit."""
    tensors = {}
    for dtype in SIZES:
        for k, shape in enumerate(SHAPES):
            n = SIZES[dtype] * int(np.prod(shape, dtype=np.int64))
            data = (37 * np.arange(n) + 11 * len(tensors)) % 256
            data = data % 2 if dtype == "BOOL" else data
            tensors[f"{dtype}.{k}"] = (dtype, shape, data.astype(np.uint8).tobytes())
    return tensors


def no_duplicates(pairs):
    keys = [k for k, _ in pairs]
    assert len(keys) == len(set(keys)), f"duplicate keys: {keys}"
    return dict(pairs)


def parse_json(text):
    return json.loads(text, object_pairs_hook=no_duplicates)


def read(path):
    """Metadata, and name -> (dtype, shape, bytes, offset); everything that the format demands is asserted."""
    with open(path, "rb") as file:
        whole = file.read()
    n, = struct.unpack("<Q", whole[:8])
    assert n <= 100_000_000 and 8 + n <= len(whole), "the header does not fit"
    header = parse_json(whole[8:8 + n].decode("utf-8"))
    assert whole[8:9] == b"{", "the header does not begin with {"
    metadata = header.pop("__metadata__", {})
    assert all(isinstance(v, str) for v in metadata.values()), "metadata is not of strings"
    at, tensors = 0, {}
    for name, info in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = info["data_offsets"]
        size = SIZES[info["dtype"]] * int(np.prod(info["shape"], dtype=np.int64))
        assert begin == at and end - begin == size, f"{name}: [{begin}, {end}] after {at}, {size} bytes"
        tensors[name] = (info["dtype"], info["shape"], whole[8 + n + begin:8 + n + end], 8 + n + begin)
        at = end
    assert 8 + n + at == len(whole), "the tensors do not fill the file"
    return metadata, tensors


def write(path, tensors, metadata=None, blanks=b""):
    header, at = ({"__metadata__": metadata} if metadata else {}), 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"data_offsets": [at, at + len(data)], "shape": shape, "dtype": dtype}
        at += len(data)
    text = json.dumps(header, ensure_ascii=True).encode() + blanks
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))


def xxh64(data):
    p1, p2, p3, p4, p5 = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
    mask = (1 << 64) - 1

    def rotate(x, r):
        return (x << r | x >> (64 - r)) & mask

    def step(lane, word):
        return rotate((lane + word * p2) & mask, 31) * p1 & mask

    stripes = len(data) // 32
    hash_, at = p5, 32 * stripes
    if stripes:
        lanes = [(p1 + p2) & mask, p2, 0, -p1 & mask]
        for i, word in enumerate(struct.unpack(f"<{4 * stripes}Q", data[:at])):
            lanes[i % 4] = step(lanes[i % 4], word)
        hash_ = sum(rotate(lane, r) for lane, r in zip(lanes, (1, 7, 12, 18))) & mask
        for lane in lanes:
            hash_ = ((hash_ ^ step(0, lane)) * p1 + p4) & mask
    hash_ = (hash_ + len(data)) & mask
    while len(data) - at >= 8:
        hash_ = (rotate(hash_ ^ step(0, int.from_bytes(data[at:at + 8], "little")), 27) * p1 + p4) & mask
        at += 8
    if len(data) - at >= 4:
        hash_ = (rotate(hash_ ^ int.from_bytes(data[at:at + 4], "little") * p1 & mask, 23) * p2 + p3) & mask
        at += 4
    for byte in data[at:]:
        hash_ = rotate(hash_ ^ byte * p5 & mask, 11) * p1 & mask
    hash_ = (hash_ ^ hash_ >> 33) * p2 & mask
    hash_ = (hash_ ^ hash_ >> 29) * p3 & mask
    return f"{hash_ ^ hash_ >> 32:016x}"


def check_tensors(tensors, aligned=True):
    want = expected()
    assert set(tensors) == set(want), f"names differ: {sorted(set(tensors) ^ set(want))}"
    for name, (dtype, shape, data, offset) in tensors.items():
        assert (dtype, shape) == want[name][:2], f"{name} is {dtype}{shape}"
        assert data == want[name][2], f"{name} has other elements"
        align = 64
        while len(data) % align:
            align //= 2
        assert not aligned or offset % align == 0, f"{name} of {len(data)} bytes is at {offset}"


def check_package(path):
    """The package's own opinion, where it is installed; NumPy has no names for some dtypes."""
    try:
        from safetensors import deserialize
    except ImportError:
        return
    with open(path, "rb") as file:
        got = {name: (info["dtype"], info["shape"], bytes(info["data"])) for name, info in deserialize(file.read())}
    want = expected()
    assert set(got) == set(want) and all(got[n][1:] == want[n][1:] for n in want), "the package reads something else"


def check_file(path):
    metadata, tensors = read(path)
    assert metadata == PAIRS, f"metadata is {metadata}"
    check_tensors(tensors)
    check_package(path)


def check_shards(path):
    with open(path, encoding="utf-8") as file:
        index = parse_json(file.read())
    want = expected()
    assert index["metadata"] == {"total_size": sum(len(t[2]) for t in want.values()), **PAIRS}, index["metadata"]
    names = sorted(set(index["weight_map"].values()))
    assert len(names) > 1 and names == [f"model-{i + 1:05}-of-{len(names):05}.safetensors" for i in range(len(names))], names
    tensors = {}
    for name in names:
        metadata, part = read(os.path.join(os.path.dirname(path), name))
        assert metadata == PAIRS and all(index["weight_map"][t] == name for t in part), name
        tensors.update(part)
    check_tensors(tensors)


def check_checkpoint(folder):
    with open(os.path.join(folder, "checkpoint.json"), "rb") as file:
        text = file.read()
    first, rest = text.split(b"\n", 1)
    whole = parse_json(text.decode("utf-8"))
    assert parse_json((first.rstrip(b",") + b"}").decode()) == {"quern_checkpoint": 1, "hash": "xxh64", "digest": xxh64(rest)}
    assert (whole["step"], whole["seed"], whole["cursor"]) == (1234, "0xfedcba9876543210", 78976), whole
    assert whole["config"] == PAIRS and whole["state"] == {"lr": 0.1, "list": [1, -2, True, None]}, whole
    path = os.path.join(folder, "model.safetensors")
    with open(path, "rb") as file:
        model = file.read()
    head = 8 + struct.unpack("<Q", model[:8])[0]
    assert whole["model"] == {"file": "model.safetensors", "bytes": len(model), "header": xxh64(model[:head])}, whole["model"]
    metadata, tensors = read(path)
    assert metadata == {}
    check_tensors(tensors)
    assert whole["tensors"] == {name: xxh64(data) for name, (_, _, data, _) in tensors.items()}


def read_folder(folder):
    check_file(os.path.join(folder, "ours.safetensors"))
    check_shards(os.path.join(folder, "model.safetensors.index.json"))
    check_checkpoint(os.path.join(folder, "step-00001234"))


def write_checkpoint(folder, tensors):
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "model.safetensors")
    write(path, tensors)
    with open(path, "rb") as file:
        model = file.read()
    head = 8 + struct.unpack("<Q", model[:8])[0]
    whole = {"tensors": {n: xxh64(t[2]) for n, t in tensors.items()}, "state": {"lr": 0.1, "list": [1, -2, True, None]},
             "config": PAIRS, "cursor": 78976, "seed": "0xfedcba9876543210", "step": 1234,
             "model": {"bytes": len(model), "header": xxh64(model[:head]), "file": "model.safetensors"}}
    rest = json.dumps(whole, indent=1)[1:].encode()
    with open(os.path.join(folder, "checkpoint.json"), "wb") as file:
        file.write(b'{"quern_checkpoint":1,"hash":"xxh64","digest":"' + xxh64(rest).encode() + b'",\n' + rest)


def write_folder(folder):
    tensors = expected()
    backwards = dict(reversed(tensors.items()))
    write(os.path.join(folder, "theirs.safetensors"), backwards, PAIRS, b" " * 3)
    names, index = list(tensors), {}
    for i in range(3):
        shard = f"part-{i}.safetensors"
        write(os.path.join(folder, shard), {n: tensors[n] for n in names[i::3]}, {"format": "pt"})
        index.update({n: shard for n in names[i::3]})
    with open(os.path.join(folder, "theirs.index.json"), "w", encoding="utf-8") as file:
        json.dump({"metadata": {"total_size": 1.5, **PAIRS}, "weight_map": index}, file, indent=2, sort_keys=True)
    write_checkpoint(os.path.join(folder, "theirs", "step-1234"), backwards)


def selftest():
    assert [xxh64(t) for t in (b"", b"a", b"abc")] == ["ef46db3751d8e999", "d24ec4f1a98c6e5b", "44bc2cf5ad770999"]
    folder, failed, passed = tempfile.mkdtemp(), 0, 0
    path = os.path.join(folder, "x.safetensors")

    def flagged(check):
        try:
            check()
        except (AssertionError, KeyError, ValueError):
            return True
        return False

    def expect(right, what, check):
        nonlocal failed, passed
        good = flagged(check) != right
        passed, failed = passed + good, failed + (not good)
        if not good:
            print(f"selftest: {what}: {'flagged' if right else 'missed'}")

    aligned = dict(sorted(expected().items(), key=lambda item: -(len(item[1][2]) & -len(item[1][2]) or 64)))
    write(path, aligned, PAIRS)
    with open(path, "rb") as file:
        n, = struct.unpack("<Q", file.read(8))
    write(path, aligned, PAIRS, b" " * (-(8 + n) % 64))
    expect(True, "a right file", lambda: check_file(path))
    with open(path, "rb") as file:
        whole = bytearray(file.read())
    for what, at in (("an element", len(whole) - 1), ("a length", 0), ("a shape", whole.index(b"[3, 1, 5]") + 1)):
        damaged = bytearray(whole)
        damaged[at] ^= 1
        with open(path, "wb") as file:
            file.write(damaged)
        expect(False, f"a changed {what}", lambda: check_file(path))
    write(path, aligned, PAIRS, b" ")
    expect(False, "a file that is not aligned", lambda: check_file(path))
    saved = os.path.join(folder, "step-00001234")
    write_checkpoint(saved, expected())
    expect(False, "a checkpoint that is not aligned", lambda: check_checkpoint(saved))
    write_folder(folder)
    expect(True, "a file by the writer", lambda: check_tensors(read(os.path.join(folder, "theirs.safetensors"))[1], False))
    shutil.rmtree(folder)
    print(f"{passed} passed, {failed} failed")
    return failed


def main(arguments):
    if arguments == ["--selftest"]:
        return selftest() != 0
    if len(arguments) != 2 or arguments[0] not in ("read", "write"):
        print(__doc__)
        return 2
    {"read": read_folder, "write": write_folder}[arguments[0]](arguments[1])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
