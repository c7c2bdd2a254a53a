"""Every command that the documents show is run here, or by another test, which is named.

The VMs' ones run on a simulated host, under a simulated libvirtd, in the order in which they are
shown. What stands within the text is compared with the parser.
"""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

from tests.docs.commands import Block, blocks, spans, words
from tests.docs.manual import REPOSITORY, arguments, commands
from tests.domains import domain_xml
from tests.product import Product
from tests.simlibvirt.simulation import Simulation
from vgpu_hook import cli

HOST = "nvidia-t4"
PROFILE = "GRID T4-2Q"

ELSEWHERE = {
    "make demo": "the test host; tests/testhost does the same steps",
    "make test": "what runs this",
    "make deb": "tests/packaging/test_deb.py, by packaging/deb/build.sh",
    "apt install ./dist/vgpu-hook_*_all.deb": "tests/packaging/test_deb.py, by dpkg",
    "python3 -m venv --system-site-packages /opt/vgpu-hook": "tests/packaging/test_wheel.py",
    "make dist": "tests/packaging/test_wheel.py, by packaging/pypi/build.sh",
    "/opt/vgpu-hook/bin/pip install ./dist/vgpu_hook-*.whl": "tests/packaging/test_wheel.py",
    "/opt/vgpu-hook/bin/vgpu-hook install-hook": "tests/packaging/test_wheel.py, with --root",
    "ls -l /etc/libvirt/hooks /etc/libvirt/hooks/qemu.d": "nothing of ours",
    "virsh dumpxml --inactive DOMAIN": "libvirt's own; it changes nothing",
}
"""Commands that can't run on a simulated host, and what runs them."""

FOUND = list(blocks())
RUN = [block for block in FOUND if any(line.startswith("vgpu-hook ") for line in block.lines)]
OPTION = re.compile(r"(?<![\w-])--?[a-z][a-z-]*")


def named(block: Block) -> str:
    return f"{block.page}: {block.lines[0]}"


def known(line: str) -> str | None:
    return next((shown for shown in ELSEWHERE if " ".join(words(line)) == shown), None)


class Reader:
    """Does what a block says, as an admin would, on a host with one stopped VM: the domain."""

    def __init__(self, simulation: Simulation, name: str, profile: str) -> None:
        self.simulation = simulation
        self.profile = profile
        self.domain = simulation.libvirt.define(domain_xml(name, {}).decode())

    def give(self, line: str) -> None:
        """Do one line. It must succeed."""
        given = [self._filled_in(word) for word in words(line)]
        if given[0] == "vgpu-hook":
            answer = self.simulation.command(*given[1:])
            # Here libvirt calls no hook of ours, which doctor finds.
            expected = 1 if given[1] == "doctor" else 0
            assert answer.status == expected, f"{line}: {answer.err}"
        elif given[:2] == ["virsh", "start"]:
            assert given[2] == self.domain.name
            self.simulation.qemu.start(self.domain)
        elif given[:2] == ["virsh", "shutdown"]:
            if self.domain.live is not None:
                self.simulation.qemu.destroy(self.domain)
        elif given[:2] == ["virsh", "edit"]:
            pass  # the VM has no hostdev by hand here
        else:
            assert known(line), f"nobody runs: {line}"

    def _filled_in(self, word: str) -> str:
        return {"DOMAIN": self.domain.name, "PROFILE": self.profile}.get(word, word)


@pytest.mark.simhost(HOST)
@pytest.mark.parametrize("block", RUN, ids=map(named, RUN))
def test_the_commands_of_a_block_work_one_after_the_other(
    block: Block, product: Product, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # some write a file where they are run
    with Simulation(product, tmp_path, PROFILE) as simulation:
        reader = Reader(simulation, "web", PROFILE)
        if any(line.startswith(("vgpu-hook explain", "vgpu-hook release")) for line in block.lines):
            before = [] if "vgpu-hook attach" in " ".join(block.lines) else ["attach", "destroyed"]
            prepare(reader, before)
        for line in block.lines:
            reader.give(line)
        if any(line.startswith("virsh start ") for line in block.lines):
            assert simulation.product.rows("domain_name, state") == [("web", "assigned")]


def prepare(reader: Reader, before: list[str]) -> None:
    """Bring the VM to where the block begins: it has run, and has stopped."""
    for step in before:
        if step == "attach":
            reader.give(f"vgpu-hook attach DOMAIN --profile '{PROFILE}'")
            reader.simulation.qemu.start(reader.domain)
        else:
            reader.simulation.qemu.destroy(reader.domain)


def test_no_command_is_shown_that_nobody_runs() -> None:
    others = [line for block in FOUND if block not in RUN for line in block.lines]
    simulated = ("make simhost", "python -m tests.simhost")  # tests/simhost/test_byhand.py
    assert [line for line in others if not known(line) and not line.startswith(simulated)] == []


def test_what_is_run_elsewhere_is_shown() -> None:
    shown = {" ".join(words(line)) for block in FOUND for line in block.lines}
    assert set(ELSEWHERE) <= shown


def test_targets_of_make_are_there() -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    for page in ("README.md", "docs/packaging.md", "docs/performance.md"):
        for target in re.findall(r"`make (\w+)`", (REPOSITORY / page).read_text()):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


@pytest.mark.parametrize("block", RUN, ids=map(named, RUN))
def test_the_parser_takes_them_as_they_are_shown(block: Block) -> None:
    for line in block.lines:
        if line.startswith("vgpu-hook "):
            cli.parser().parse_args(words(line)[1:])


@pytest.mark.parametrize(("page", "span"), sorted(set(spans())), ids=str)
def test_what_stands_in_the_text_is_a_command_with_these_options(page: str, span: str) -> None:
    given = span.split()[1:]
    if given[0].startswith(("--help", "--version", "*", r"\-")):
        return
    found = {command.name: command.parser for command in commands(cli.parser())}
    two = " ".join(given[:2])
    parser = found.get(two) or found.get(given[0])
    assert parser is not None, f"{page}: {span}"
    options = {option for action in arguments(parser) for option in action.option_strings}
    for option in OPTION.findall(span.partition(" ")[2]):
        assert option in options, f"{page}: {span}"


def test_the_parser_says_no_to_what_is_not_there() -> None:
    """So that the tests above can fail."""
    with contextlib.redirect_stderr(io.StringIO()), pytest.raises(SystemExit):
        cli.parser().parse_args(words("vgpu-hook attach DOMAIN --profiles x")[1:])
