"""Figures, not tests: `make bench`. Each is a median of RUNS with its spread, in pairs with a peer.

Whole processes, as libvirt starts them. A pair is run in one go, so that what else the machine does
falls on both; what is said is the median of the ratios pair by pair.
"""
