"""The invariants I1 to I10 in any order of events, on the program that users run.

world.py: what is outside of the product, as it believes it: VMs, who has what open, what admins do.
machine.py: a host from boot to end, and what goes wrong with it. rules.py: domains, VMs, commands.
hypothesis puts the rules in any order. drivers.py: the product, as processes or in this one.
run.py: takes as many steps as are wanted. The checks are written from the design's rules; nothing
here looks at how the product keeps them.
"""
