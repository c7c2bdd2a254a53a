"""The stand-in module has what the product uses, with libvirt's own values."""

from __future__ import annotations

import ast
from pathlib import Path

import libvirt
import pytest

import vgpu_hook

from .calls import Calls
from .facade import Connection, Domain, Pool, Volume
from .standin import libvirt as standin
from .state import SimLibvirt

PRODUCT = sorted(Path(vgpu_hook.__file__).parent.rglob("*.py"))
CLASSES = {
    Connection: libvirt.virConnect,
    Domain: libvirt.virDomain,
    Pool: libvirt.virStoragePool,
    Volume: libvirt.virStorageVol,
}
OURS = {"call", "happened", "lost", "callbacks", "on_close", "uri"}


def used_of_the_module() -> set[str]:
    """What the product takes from `libvirt`, wherever it is imported as a whole."""
    found = set()
    for file in PRODUCT:
        tree = ast.parse(file.read_text())
        imports = [a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names]
        if "libvirt" in imports:
            found |= {
                node.attr
                for node in ast.walk(tree)
                if isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id == "libvirt"
            }
    return {name for name in found if hasattr(libvirt, name)}


def test_the_stand_in_has_all_that_the_product_uses() -> None:
    used = used_of_the_module()
    assert len(used) > 20
    assert {name for name in used if not hasattr(standin, name)} == set()


def test_its_constants_are_libvirts() -> None:
    constants = {name: value for name, value in vars(standin).items() if name.startswith("VIR_")}
    assert constants == {name: getattr(libvirt, name) for name in constants}


@pytest.mark.parametrize("ours", CLASSES, ids=lambda kind: str(kind.__name__))
def test_its_classes_have_nothing_that_libvirts_have_not(ours: type) -> None:
    methods = {name for name in vars(ours) if not name.startswith("_")} - OURS
    assert methods
    assert {name for name in methods if not hasattr(CLASSES[ours], name)} == set()


def test_each_call_of_a_connection_is_answered() -> None:
    """`facade` asks by name: no name may be one that nobody answers."""
    tree = ast.parse((Path(__file__).parent / "facade.py").read_text())
    asked = {
        str(node.args[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("call", "_call")
        and isinstance(node.args[0], ast.Constant)
    }
    calls = Calls(SimLibvirt())
    assert len(asked) > 15
    assert {name for name in asked if not hasattr(calls, "_" + name)} == set()
