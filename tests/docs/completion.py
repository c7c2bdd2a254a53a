"""packaging/completion/vgpu-hook: bash's completion of the command, from the parser.

`make docs` writes it. Not shtab: what that makes is not clean for shellcheck, leaves variables in
the user's shell, and can't complete names of domains that have spaces.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from tests.docs.manual import Command, arguments, commands
from vgpu_hook import cli

TARGET = Path(__file__).resolve().parents[2] / "packaging" / "completion" / "vgpu-hook"

HEAD = """\
# bash completion for vgpu-hook(8)                          -*- shell-script -*-
# shellcheck shell=bash
# Made from vgpu_hook/cli.py by `make docs`: do not edit.

# Names of domains may have spaces. A libvirt that hangs must not hang the shell.
_vgpu_hook_domains() {
    local name
    while read -r name; do
        [[ -n $name ]] || continue
        printf -v name %q "$name"
        [[ $name != "$1"* ]] || COMPREPLY+=("$name")
    done < <(timeout 2 virsh -q list --all --name 2>/dev/null)
}

_vgpu_hook() {
    local cur=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}
    local command='' options='' words='' subject='' word
    COMPREPLY=()
    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
        case "$command $word" in
"""
VALUES = """\
        esac
    done

    case "$command $before" in
"""
COMMANDS = """\
    esac
    case $command in
"""
TAIL = """\
    esac

    case $subject in
    value) return ;; # of an option, and it could be anything
    file) compopt -o filenames ;;
    esac
    if [[ $cur == -* && $subject != words ]]; then
        words=$options
    fi
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
    case $cur$subject in
    -*) ;;
    *domain) _vgpu_hook_domains "$cur" ;;
    *file) mapfile -t COMPREPLY < <(compgen -f -- "$cur") ;;
    esac
}

complete -F _vgpu_hook vgpu-hook
"""


def text() -> str:
    """Return the whole file."""
    found = list(commands(cli.parser()))
    return HEAD + "".join(
        [
            *_paths(found),
            VALUES,
            *(line for command in found for line in _values(command)),
            COMMANDS,
            *map(_command, found),
            *_groups(found),
            TAIL,
        ]
    )


def write() -> None:
    """Write the file."""
    TARGET.write_text(text())


def _paths(found: list[Command]) -> Iterator[str]:
    """Yield the cases that follow the words of a command: ` store`, then `store check`."""
    for name in dict.fromkeys(part for command in found for part in _prefixes(command.name)):
        before, _, last = name.rpartition(" ")
        yield f"        '{before} {last}') command='{name}' ;;\n"


def _prefixes(name: str) -> list[str]:
    words = name.split(" ")
    return [" ".join(words[:count]) for count in range(1, len(words) + 1)]


def _values(command: Command) -> Iterator[str]:
    """Yield the cases for the values of a command's options."""
    for action in arguments(command.parser):
        if not action.option_strings or action.nargs == 0:
            continue
        case = " | ".join(f"'{command.name} {option}'" for option in action.option_strings)
        if action.choices is not None:
            yield f"    {case}) words='{' '.join(action.choices)}' subject='words' ;;\n"
        else:
            yield f"    {case}) subject='{'file' if action.metavar == 'DIR' else 'value'}' ;;\n"


def _command(command: Command) -> str:
    given = arguments(command.parser)
    options = [max(a.option_strings, key=len) for a in given if a.option_strings]
    subjects = {_subject(action) for action in given if not action.option_strings}
    subject = next(iter(sorted(subjects)), "nothing")
    return (
        f"    '{command.name}') options='{' '.join([*options, '--help'])}'"
        f" subject=${{subject:-{subject}}} ;;\n"
    )


def _subject(action: argparse.Action) -> str:
    """Return what a positional argument is completed with."""
    name = str(action.metavar or action.dest)
    if name.startswith("DOMAIN"):
        return "domain"
    return "file" if name.startswith("FILE") else "nothing"


def _groups(found: list[Command]) -> Iterator[str]:
    """Yield the cases for what is followed by a command: nothing, or `store`."""
    groups: dict[str, list[str]] = {}
    for command in found:
        for whole in _prefixes(command.name):
            before, _, last = whole.rpartition(" ")
            if last not in groups.setdefault(before, []):
                groups[before].append(last)
    for before, names in groups.items():
        options = "--help" if before else "--help --version"
        yield f"    '{before}') words='{' '.join(names)}' options='{options}' ;;\n"
