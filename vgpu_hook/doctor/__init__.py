"""`vgpu-hook doctor`: what is wrong with the installation or with the host, and what mends it.

One module for each subject; each check is a function that returns findings, and is run in a child
that can be given up on (command.py). Nothing here writes, and nothing here is in the hook's way.
"""
