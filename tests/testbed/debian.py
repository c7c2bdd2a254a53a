"""Where this machine gets Debian's packages from, and how to call mmdebstrap with it.

Everything comes from the machine's own apt configuration, so that whatever mirror, proxy or
exception it needs holds here too. Not for which packages (recipe.py).
"""

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.testbed.errors import TestbedError
from tests.testbed.recipe import Suite

KEYRINGS = Path("/usr/share/keyrings")
# Of the machine's apt options, those about how to reach a mirror.
_PASSED_ON = re.compile(
    r"^Acquire::(Check-Valid-Until|Check-Date|Retries|ForceIPv4|ForceIPv6|https?::\S+) "
)
_NOT_INSTALLED = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*")


def _output(*argv: str) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def mirror() -> str:
    """Return the address of the Debian mirror that this machine's apt uses."""
    form = "$(ORIGIN)\t$(LABEL)\t$(COMPONENT)\t$(REPO_URI)"
    for line in _output("apt-get", "indextargets", "--format", form).splitlines():
        origin, label, component, address = line.split("\t")
        # Security updates have the same origin and a label of their own.
        if (origin, label, component) == ("Debian", "Debian", "main"):
            return address
    raise TestbedError(
        "apt on this machine lists no Debian mirror with component main;"
        " run 'apt-get update' and look at /etc/apt"
    )


def _options() -> list[str]:
    dumped = _output("apt-config", "dump", "Acquire").splitlines()
    wanted = [line.rstrip(";") for line in dumped if _PASSED_ON.match(line)]
    return [*wanted, 'Acquire::Languages "none"']


def sources(suite: Suite) -> str:
    """Return the sources.list of the tree. This machine must know the suite's keys."""
    keys = sorted(KEYRINGS.glob(suite.keys))
    if not keys:
        raise TestbedError(
            f"no {suite.keys} in {KEYRINGS}; update the package debian-archive-keyring"
        )
    return f"deb [signed-by={','.join(map(str, keys))}] {mirror()} {suite.name} main\n"


def mmdebstrap(variant: str, packages: Sequence[str], suite: str, tree: Path) -> list[str]:
    """Return the command that makes a tree; the sources.list goes to its standard input.

    To be run under isolated().
    """
    command = ["mmdebstrap", "--mode=root", f"--variant={variant}"]
    command += [f"--aptopt={option}" for option in _options()]
    command += ["--dpkgopt=force-unsafe-io"]
    command += [f"--dpkgopt=path-exclude={path}" for path in _NOT_INSTALLED]
    return [*command, f"--include={','.join(packages)}", suite, str(tree), "-"]


def isolated() -> list[str]:
    """Return the prefix of a command that may mount, and that dies with this process.

    It runs in mount and PID namespaces of its own, so when it ends, or is killed, none of its
    mounts and processes are left.
    """
    unshare = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
    return ["setpriv", "--pdeathsig", "KILL", "--", *unshare, "--"]
