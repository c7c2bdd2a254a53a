"""What the tests of this folder do again and again: run a VM, let it end, plan for one."""

from __future__ import annotations

from pathlib import Path

from tests.domains import vgpus_of
from tests.product import Answer, Product

DONE = Answer(0, "", "")


def refusal(product: Product, name: str, xml: bytes) -> str:
    """Start a domain, which is refused in one line; return the line."""
    answer = product.hook(name, "prepare", xml)
    assert (answer.status, answer.out) == (1, "")
    assert len(answer.err.splitlines()) == 1
    return answer.err


def end(product: Product, name: str, xml: bytes, reason: str) -> None:
    """Let libvirt tell of a VM's end as it does, with its reason (facts A4)."""
    for operation in ("stopped", "release"):
        assert product.hook(name, operation, xml, reason) == DONE


def planned(product: Product, folder: Path, xml: bytes) -> bytes:
    """Return the domain with the devices that it would be given now."""
    file = folder / "planned.xml"
    file.write_bytes(xml)
    answer = product.command("render", str(file))
    assert answer.status == 0, answer.err
    return answer.out.encode()


def planned_device(product: Product, folder: Path, xml: bytes) -> str:
    """Return the one device that the domain would be given now."""
    ((_, device),) = vgpus_of(planned(product, folder, xml)).values()
    return device


def script(folder: Path, name: str, *statuses: int) -> tuple[str, Path]:
    """Make a stand-in for a tool that exits with these statuses in turn, the last one for ever.

    Returns its path, and the file in which it notes the calls of all such tools of the folder.
    """
    file, log = folder / name, folder / "calls"
    given = "".join(f"{n}) exit {status};;" for n, status in enumerate(statuses, 1))
    file.write_text(
        f'#!/bin/sh\necho "{name} $*" >>{log}\n'
        f'case "$(grep -c "^{name} " {log})" in {given} *) exit {statuses[-1]};; esac\n'
    )
    file.chmod(0o755)
    return str(file), log
