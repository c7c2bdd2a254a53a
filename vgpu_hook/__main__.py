"""`python3 -m vgpu_hook` is `vgpu-hook`."""

import sys

from vgpu_hook.cli import main

if __name__ == "__main__":
    sys.exit(main())
