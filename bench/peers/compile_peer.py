#!/usr/bin/python3
"""bench/peers/compile_peer.py -- PyTorch, compiled by torch.compile, of the networks of `quern bench zoo`"""
from zoo_serve import main

main("compile")
