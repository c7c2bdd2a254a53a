"""Dependencies point one way (docs/architecture.md), and nobody but one file names a root."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "vgpu_hook"
FILES = sorted(PACKAGE.rglob("*.py"))
LAYERS = [
    {"model", "protocol", "ranges", "exposition", "addresses", "__init__"},
    {"bounded", "folders", "sysfs", "request", "database", "log", "admission", "hostdevs"},
    {"domain", "store_domains", "store_devices", "workers"},
    {"store", "definitions"},
    {"vfio", "frameworks", "placement", "config", "config_file", "locks", "store_file"},
    {"interpreter", "selinux"},
    {"guard", "frameworks.handles", "frameworks.gpus", "stores"},
    {"frameworks.mdev", "frameworks.vendor_vfio", "planning", "refusals"},
    {"host", "catalogue"},
    {"creation", "arrival", "snapshot", "reduced", "redaction", "store_dump", "journal"},
    {"lifecycle"},
    {"hook"},
    {"operations"},
    {"lint", "report", "libvirtd", "tables", "context", "bootgate", "remote", "bundle"},
    {"reconcile", "events", "deletion", "hotplug", "server", "metrics_http"},
    {"metrics"},
    {"publishing"},
    {"listener", "commands", "show", "migration", "installation", "record"},
    {"doctor", "doctor.findings", "doctor.package", "doctor.units"},
    {"doctor.confinement", "doctor.hypervisor", "doctor.kernel", "doctor.records"},
    {"doctor.definitions", "doctor.hook_file", "doctor.service"},
    {"doctor.scripts"},
    {"doctor.command"},
    {"daemon", "cli"},
    {"__main__"},
]
LATE = {("config_file", "config"), ("config", "config_file"), ("hook", "operations")}
"""Imported only when needed: a file that sets something, a daemon that does not answer."""


def name(file: Path) -> str:
    parts = file.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__") or "__init__"


def imports(file: Path) -> set[str]:
    """The modules that a file imports, anywhere in it; our own as names within the package."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            module = str(node.module)
            for alias in node.names:
                inner = f"{module}.{alias.name}"
                relative = inner.removeprefix("vgpu_hook.").replace(".", "/")
                is_module = (PACKAGE / f"{relative}.py").exists()
                found.add(inner if module.startswith("vgpu_hook") and is_module else module)
    return {item.removeprefix("vgpu_hook.") if "." in item else item for item in found}


def layer(module: str) -> int | None:
    return next((number for number, names in enumerate(LAYERS) if module in names), None)


@pytest.mark.parametrize("file", FILES, ids=name)
def test_imports_point_to_lower_layers(file: Path) -> None:
    own = layer(name(file))
    assert own is not None, f"{name(file)} is in no layer"
    for module in imports(file):
        below = layer(module)
        if below is not None and (name(file), module) not in LATE:
            assert below < own or module == "__init__", f"{name(file)} imports {module}"


def test_model_imports_the_standard_library_only() -> None:
    top = {module.split(".")[0] for module in imports(PACKAGE / "model.py")}
    assert top <= sys.stdlib_module_names


def test_the_hook_never_imports_libvirt() -> None:
    """Calling it from a hook deadlocks libvirtd (facts A10)."""
    seen: set[str] = set()
    todo = {"hook"}
    while todo:
        module = todo.pop()
        seen.add(module)
        file = PACKAGE / f"{module.replace('.', '/')}.py"
        file = file if file.exists() else PACKAGE / module / "__init__.py"
        todo |= {found for found in imports(file) if layer(found) is not None} - seen
        assert "libvirt" not in imports(file), module
    assert "lifecycle" in seen


@pytest.mark.parametrize("file", FILES, ids=name)
def test_only_the_roots_name_sys_proc_and_dev(file: Path) -> None:
    nodes = list(ast.walk(ast.parse(file.read_text())))
    docstrings = [node.value for node in nodes if isinstance(node, ast.Expr)]
    texts = [
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docstrings
    ]
    named = [text for text in texts if re.match("/(sys|proc|dev)(/|$)", text)]
    if name(file) in ("vfio", "frameworks.handles"):
        # The kernel's own names for handles, compared with what /proc says, are no paths.
        named = [text for text in named if not text.startswith("/dev/vfio/")]
    assert not named or name(file) in ("sysfs", "config_file"), named


@pytest.mark.parametrize("file", FILES, ids=name)
def test_files_and_functions_stay_small(file: Path) -> None:
    text = file.read_text()
    assert len(text.splitlines()) < 400
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.name != "parser":
            assert int(node.end_lineno or 0) - node.lineno < 50, node.name
