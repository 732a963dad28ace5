#!/usr/bin/python3
"""bench/peers/eager_peer.py -- PyTorch, operation by operation, of the networks of `quern bench zoo`"""
from zoo_serve import main

main("eager")
