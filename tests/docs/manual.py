"""docs/man: the parts of the man pages that the parser and the configuration's models say.

`make docs` writes them between the comments `begin: NAME` and `end: NAME` of each page.
"""

from __future__ import annotations

import argparse
import email.utils
import json
import re
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from vgpu_hook import __version__, cli, config_file

REPOSITORY = Path(__file__).resolve().parents[2]
MAN = REPOSITORY / "docs" / "man"
CHANGELOG = REPOSITORY / "packaging" / "deb" / "debian" / "changelog"
TYPES = {"string": "string", "boolean": "true or false", "number": "number"}


class Command(typing.NamedTuple):
    """A command, or an action of one, and its help."""

    name: str
    help: str
    parser: argparse.ArgumentParser


def commands(parser: argparse.ArgumentParser, before: str = "") -> Iterator[Command]:
    """Yield each command that can be given, in the parser's order: `store check`, not `store`."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {entry.dest: str(entry.help) for entry in action._choices_actions}
            for name, inner in action.choices.items():
                whole = f"{before}{name}"
                found = list(commands(inner, f"{whole} "))
                yield from found or [Command(whole, helps[name], inner)]


def arguments(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Return what a parser takes, without --help."""
    return [a for a in parser._actions if not isinstance(a, argparse._HelpAction)]


def part_commands() -> str:
    """Return every command with its arguments, as a definition list."""
    return "\n".join(map(_command, commands(cli.parser())))


def part_sections() -> str:
    """Return every section of the configuration with its keys."""
    models = typing.get_type_hints(config_file.File)
    return "\n".join(_section(name, models[name]) for name in config_file.File.__annotations__)


def part_common() -> str:
    """Return the options that several commands have, and which do."""
    lines = []
    for action, names in _common().items():
        lines += [action, f"    For {', '.join(f'**{name}**' for name in names)}.", ""]
    return "\n".join(lines)


def version() -> str:
    """Return what stands in the page's foot: the version, and its date in Debian's changelog."""
    released = re.search(r"^ -- .*>  (.*)$", CHANGELOG.read_text(), re.MULTILINE)
    assert released is not None
    date = email.utils.parsedate_to_datetime(released[1]).date()
    return f":Version: vgpu-hook {__version__}\n:Date: {date}\n"


PARTS: dict[str, Callable[[], str]] = {
    "commands": part_commands,
    "common": part_common,
    "sections": part_sections,
}


def written(text: str) -> str:
    """Return a page with its generated parts as they should be."""
    text = re.sub(r"^:Version: .*\n:Date: .*\n", version(), text, flags=re.MULTILINE)

    def fill(match: re.Match[str]) -> str:
        return f"{match[1]}\n{PARTS[match[2]]()}\n{match[3]}"

    return re.sub(r"(^\.\. begin: (\w+)\n).*?(^\.\. end: \2\n)", fill, text, flags=re.M | re.S)


def write() -> None:
    """Write the generated parts of all pages."""
    for page in sorted(MAN.glob("*.rst")):
        page.write_text(written(page.read_text()))


def _command(command: Command) -> str:
    given = arguments(command.parser)
    words = [_word(action) for action in given if action.required or not action.option_strings]
    optional = any(action.option_strings and not action.required for action in given)
    term = " ".join([f"**{command.name}**", *words, *(["[*OPTION*...]"] if optional else [])])
    lines = [term, f"    {_sentence(command.help)}", ""]
    common = _common()
    for action in given:
        if _described(action) in common:
            continue
        lines += [f"    {_term(action)}", f"        {_sentence(str(action.help or ''))}", ""]
    return "\n".join(lines)


def _described(action: argparse.Action) -> str:
    return f"{_term(action)}\n    {_sentence(str(action.help or ''))}"


def _common() -> dict[str, list[str]]:
    """Return, by its description, each option that is the same for three commands or more."""
    found: dict[str, list[str]] = {}
    for command in commands(cli.parser()):
        for action in filter(lambda action: action.option_strings, arguments(command.parser)):
            found.setdefault(_described(action), []).append(command.name)
    return {described: names for described, names in found.items() if len(names) >= 3}


def _term(action: argparse.Action) -> str:
    if not action.option_strings:
        return _value(action)
    value = "" if action.nargs == 0 else f" {_value(action)}"
    return ", ".join(f"**{option}**{value}" for option in action.option_strings)


def _word(action: argparse.Action) -> str:
    return _term(action) if action.option_strings else _value(action)


def _value(action: argparse.Action) -> str:
    if action.choices is not None:
        return r"\ \|\ ".join(f"**{choice}**" for choice in action.choices)
    metavar = str(action.metavar or action.dest.upper())
    more = "..." if action.nargs == "+" else ""
    return r"\ \|\ ".join(f"*{word}*" for word in metavar.split("|")) + more


def _sentence(text: str) -> str:
    """Return a help text as a sentence in rst: `x` is bold, all else is plain."""
    text = re.sub(r"([\\*|_])", r"\\\1", text)
    text = re.sub(r"`([^`]+)`", r"**\1**", text)
    return f"{text[:1].upper()}{text[1:]}." if text else "How the answer is printed."


def _section(name: str, model: Any) -> str:
    table = f"[{name}]"
    if typing.get_origin(model) is dict:
        model, table = typing.get_args(model)[1], f'[{name}."*NAME*"]'
    text = re.sub(r"^\[.*?\]: ", "", " ".join(str(model.__doc__).split()))
    title = table.replace("*", "")
    lines = [title, "-" * len(title), "", text[0].upper() + text[1:], ""]
    for key, field in _schema(model)["properties"].items():
        default = json.dumps(field["default"])
        lines += [
            f"**{key}** = *{_type(field)}*",
            f"    {_sentence(field['description'])} Default: ``{default}``",
            "",
        ]
    return "\n".join(lines)


def _schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON schema, by pydantic 1 or 2."""
    make = getattr(model, "model_json_schema", None) or model.schema
    found: dict[str, Any] = make()
    return found


def _type(field: dict[str, Any], more: str = "") -> str:
    """Return a value's type in words, `more` being an s for several of them."""
    if "enum" in field:
        return " or ".join(json.dumps(value) for value in field["enum"])
    if field["type"] == "array":
        return f"list{more} of {_type(field['items'], 's')}"
    if "minimum" in field:
        return f"number from {field['minimum']:g} to {field['maximum']:g}"
    return TYPES[field["type"]] + more
