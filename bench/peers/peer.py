"""bench/peers/peer.py -- the protocol of peer.h for peers in Python: serve(name, version, prepare)

prepare(kind, values) gives a function that does the work once, or raises Unknown. values: the integers of the case."""
import sys
import time


class Unknown(Exception):
    pass


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
                run = prepare(words[1], values)
                run()
                print("ok", flush=True)
            except Exception as why:  # a case that a peer cannot do must not end it
                run = None
                print("no", " ".join(str(why).split()) or type(why).__name__, flush=True)
        elif words[0] == "run" and run is not None:
            start = time.perf_counter()
            for _ in range(int(words[1])):
                run()
            print(f"time {time.perf_counter() - start:.9f}", flush=True)
        else:
            print("no such command:", line.strip(), flush=True)
