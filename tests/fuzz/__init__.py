"""Fuzzing of the hook's input: `make fuzz`, and a short fixed run in tests/simulated/test_fuzz.py.

domains.py has the domains and their elements, mutations.py what is done to them, calls.py the two
ways to call the hook and what must hold, __main__.py the long run.
"""
