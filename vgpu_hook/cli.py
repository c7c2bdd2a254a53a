"""The command vgpu-hook: the parser, and the one place where errors become sentences.

Exit status: 0 done, 1 not done (with `error: ` and the reason on stderr), 2 wrong usage.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys

from vgpu_hook import __version__
from vgpu_hook.model import FORK_POLICIES, PLACEMENTS, VgpuError

DEFAULT_URI = "qemu:///system"


def parser() -> argparse.ArgumentParser:
    """Return the parser, from which completion and the manual are made too."""
    top = argparse.ArgumentParser(
        prog="vgpu-hook",
        description="Gives plain-libvirt VMs a vGPU: says what is what, and attaches them.",
    )
    top.add_argument("--version", action="version", version=f"vgpu-hook {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)

    attach = _add(commands, "attach", "write a vGPU request and its hostdev into a domain")
    _connect(attach)
    attach.add_argument("domain", metavar="DOMAIN", help="name or UUID")
    attach.add_argument(
        "--profile", required=True, help="type id, its number, or name (see `profiles`)"
    )
    attach.add_argument("--slot", help="name of the vGPU in the domain (default: next number)")
    attach.add_argument("--gpu", metavar="ADDR", help="only this GPU: PCI address or sysfs name")
    attach.add_argument("--fork", choices=FORK_POLICIES, help="what a clone gets (default: new)")
    attach.add_argument(
        "--display", choices=("on", "off"), help="hostdev attribute: the VM's display"
    )
    attach.add_argument("--ramfb", choices=("on", "off"), help="hostdev attribute: display at boot")
    attach.add_argument("--placement", choices=PLACEMENTS, help="which GPU (default: configured)")
    attach.add_argument("--params", help="NVIDIA vgpu_params, e.g. frame_rate_limiter=0")

    attach.add_argument("--live", action="store_true", help="plug it into the running VM, too")

    detach = _add(commands, "detach", "take a vGPU out of a domain's definition")
    _connect(detach)
    detach.add_argument("domain", metavar="DOMAIN", help="name or UUID")
    detach.add_argument("--slot", help="which, if the domain has several")

    detach.add_argument("--live", action="store_true", help="take it from the running VM, too")

    _format(
        _add(
            commands,
            "status",
            "show GPUs, their vGPUs, who has them, what is retained",
            home="show",
        )
    )
    _format(_add(commands, "profiles", "show which profiles fit where, now", home="show"))

    release = _add(commands, "release", "release what a stopped domain still has on record")
    _connect(release)
    release.add_argument("domain", metavar="DOMAIN", help="name or UUID")

    reconcile = _add(
        commands, "reconcile", "release what is orphaned and proved ours; report all else"
    )
    _connect(reconcile)
    reconcile.add_argument("--dry-run", action="store_true", help="only say what would be done")
    _format(reconcile)

    delete = _add(commands, "delete", "delete a domain; a deletion that was stopped goes on")
    _connect(delete)
    delete.add_argument("domain", metavar="DOMAIN", help="name or UUID")
    delete.add_argument(
        "--remove-storage", action="store_true", help="and its volumes, if they are in a pool"
    )
    delete.add_argument("--cancel", action="store_true", help="call off a deletion that stopped")

    _add(commands, "boot-gate", "run the boot commands and wait for the profiles domains ask for")

    render = _add(commands, "render", "print a domain XML with its hostdevs put in")
    render.add_argument("file", metavar="FILE.xml", help="the domain's XML; - for stdin")

    explain = _add(
        commands, "explain", "show the history, and whether it could be released now", home="show"
    )
    explain.add_argument("subject", metavar="DOMAIN|DEVICE", help="name or UUID")
    _format(explain)

    quarantine = _add(
        commands, "quarantine", "show VFs that are set aside because they failed", home="show"
    )
    quarantine.add_argument("--clear", metavar="VF", nargs="+", help="use these VFs again")
    _format(quarantine)

    lint = _add(commands, "lint", "look for PCI hostdevs that would break a vGPU host")
    _connect(lint)
    _format(lint)

    doctor = _add(
        commands,
        "doctor",
        "look for what is wrong here, and what mends it; exit status 1 if anything is",
        home="doctor.command",
    )
    _connect(doctor)
    _format(doctor)

    migrate = _add(
        commands,
        "check-migrate",
        "say whether a VM can go to another host with its vGPUs",
        home="migration",
    )
    _connect(migrate)
    migrate.add_argument("domain", metavar="DOMAIN", help="name or UUID")
    migrate.add_argument("uri", metavar="DEST_URI", help="e.g. qemu+ssh://root@host2/system")
    _format(migrate)
    arrive = _add(
        commands,
        "check-arrival",
        "say whether a VM could come to this host; check-migrate runs it there",
        home="migration",
    )
    arrive.add_argument("file", metavar="FILE.xml", help="the domain's XML; - for stdin")
    arrive.add_argument(
        "--stopped", action="store_true", help="the VM does not run: it needs no room yet"
    )
    _format(arrive)

    record = _add(
        commands, "record", "write a file for a bug report, without passwords", home="record"
    )
    _connect(record)
    record.add_argument("--output", "-o", metavar="FILE", help="a .tar.gz (default: by the time)")
    record.add_argument(
        "--redact-names", action="store_true", help="rename domains, UUIDs and paths in it"
    )
    record.add_argument("--force", action="store_true", help="overwrite FILE")

    store = _add(commands, "store", "check the store of assignments, or set it aside")
    actions = store.add_subparsers(title="actions", metavar="ACTION", required=True)
    check = _add(actions, "check", "check the store", "store_check", home="show")
    _format(check)
    _add(
        actions,
        "set-aside",
        "move the store away; a new one is begun",
        "store_set_aside",
        home="show",
    )

    install = _add(
        commands,
        "install-hook",
        "put hook, units and settings in place, if no package did",
        home="installation",
    )
    install.add_argument(
        "--root", metavar="DIR", default="/", help="below this folder (default: /)"
    )
    install.add_argument("--remove", action="store_true", help="take them out again")
    return top


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit status."""
    _open_streams()
    try:
        status = _run(arguments)
    except SystemExit:  # `--help`, wrong usage
        if _flush():
            raise
        return 1
    return status if _flush() else 1


def _run(arguments: list[str] | None) -> int:
    top = parser()
    try:
        parsed = top.parse_args(arguments)
        for word in sys.argv[1:] if arguments is None else arguments:
            # libvirt and the store have none
            if any("\ud800" <= char <= "\udfff" for char in word):
                top.error(f"{word!r} is not UTF-8")
        # Imported only now: `--help` and wrong usage need neither libvirt nor lxml, and what shows
        # something needs no libvirt.
        actions = importlib.import_module(f"vgpu_hook.{parsed.home}")
        return int(getattr(actions, parsed.action)(parsed))
    except VgpuError as error:
        print(f"error: {error}", file=sys.stderr)
    except ImportError as error:
        from vgpu_hook.doctor import package

        print(f"error: {VgpuError(str(error), package.missing_here(error))}", file=sys.stderr)
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
    except OSError as error:
        if error.filename is None:
            _lost(error)
        else:
            print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
    return 1


def _open_streams() -> None:
    """See that there are all three, lowest first, and that each name can be written."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # `vgpu-hook status >&-`
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - until we end
    if isinstance(sys.stdout, io.TextIOWrapper):  # as stderr is: not all is in each character set
        sys.stdout.reconfigure(errors="backslashreplace")


def _flush() -> bool:
    """Write out what was printed; tell whether that was possible."""
    try:
        sys.stdout.flush()
    except OSError as error:
        _lost(error)
        return False
    return True


def _lost(error: OSError) -> None:
    """Say that the output can't be written, and drop what is left of it."""
    if not isinstance(error, BrokenPipeError):  # `vgpu-hook status | head`
        print(f"error: the output can't be written: {error.strerror}", file=sys.stderr)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _add(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    text: str,
    action: str = "",
    *,
    home: str = "commands",
) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    command.set_defaults(action=action or name.replace("-", "_"), home=home)
    return command


def _connect(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--connect",
        "-c",
        metavar="URI",
        default=os.environ.get("LIBVIRT_DEFAULT_URI", DEFAULT_URI),
        help=f"libvirt to talk to (default: $LIBVIRT_DEFAULT_URI, else {DEFAULT_URI})",
    )


def _format(command: argparse.ArgumentParser) -> None:
    command.add_argument("--format", choices=("table", "json"), default="table")


if __name__ == "__main__":
    sys.exit(main())
