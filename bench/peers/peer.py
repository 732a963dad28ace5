"""bench/peers/peer.py -- the protocol of peer.h for peers in Python: serve(name, version, prepare)

prepare(kind, values) gives a function that does the work once, or raises Unknown. values: the integers of the case.
The function may have attributes: finish(), which waits until the work is done, and report(), a dictionary of numbers."""
import ctypes
import mmap
import sys
import time


LARGE = 1 << 21  # bytes from which on large pages are asked for, as Quern's side does
_maps = []


class Unknown(Exception):
    pass


def memory(nbytes):
    """A buffer of nbytes, and where in it they begin: in large pages where there are many."""
    if nbytes < LARGE:
        return bytearray(nbytes), 0
    block = mmap.mmap(-1, (nbytes + 2 * LARGE) // LARGE * LARGE)
    _maps.append(block)
    block.madvise(mmap.MADV_HUGEPAGE)
    return block, -ctypes.addressof(ctypes.c_char.from_buffer(block)) % LARGE


def forget():
    """Drops what memory() gave for the case before; what is still in use stays."""
    _maps.clear()


def serve(name, version, prepare):
    print(f"peer {name} {version}", flush=True)
    run = None
    for line in sys.stdin:
        words = line.split()
        if not words:
            continue
        if words[0] == "quit":
            break
        if words[0] == "case":
            values = {k: int(v) for k, v in (w.split("=", 1) for w in words[2:])}
            try:
                run = None
                forget()
                run = prepare(words[1], values)
                run()
                numbers = run.report() if hasattr(run, "report") else {}
                print("ok", *(f"{k}={x}" for k, x in numbers.items()), flush=True)
            except Exception as why:  # a case that a peer cannot do must not end it
                run = None
                print("no", " ".join(str(why).split()) or type(why).__name__, flush=True)
        elif words[0] == "run" and run is not None:
            start = time.perf_counter()
            for _ in range(int(words[1])):
                run()
            if hasattr(run, "finish"):
                run.finish()
            print(f"time {time.perf_counter() - start:.9f}", flush=True)
        else:
            print("no such command:", line.strip(), flush=True)
