"""Prints a script that completes verbs, options and their values in your shell."""

import argparse
import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from lakelog.jobs.cli.console import OK, run
from lakelog.jobs.cli.verb_parser import VerbParser, parser_of

# Metavars of options and arguments whose value is a path; others have no values to propose.
_PATHS = frozenset({"FILE", "DIR", "URI"})


def main(argv: list[str]) -> int:
    """The verb."""
    return run(make_parser(), _completion, argv)


def make_parser() -> VerbParser:
    """The arguments."""
    parser = parser_of("completion", __doc__)
    parser.add_argument("shell", choices=SHELLS, help="the shell that reads the script")
    return parser


def _completion(args: argparse.Namespace) -> int:
    from lakelog.jobs.launch.launcher import verbs_here  # which starts this verb

    found = [(name, verb.help, importlib.import_module(verb.module)) for name, verb in verbs_here().items()]
    print(SHELLS[args.shell]([words_of(name, said, module.make_parser()) for name, said, module in found]), end="")
    return OK


class Option(NamedTuple):
    """An option with its values: `choices`, or paths, or others; a flag has none."""

    names: tuple[str, ...]
    help: str
    has_value: bool
    choices: tuple[str, ...]
    is_path: bool


class VerbWords(NamedTuple):
    """A verb: the words that may follow it, and its options. `takes_paths`: files may follow it too."""

    name: str
    help: str
    words: tuple[str, ...]
    options: tuple[Option, ...]
    takes_paths: bool


def words_of(name: str, help: str, parser: argparse.ArgumentParser) -> VerbWords:
    """The words of a parser, with the options of its commands."""
    words: list[str] = []
    options: dict[tuple[str, ...], Option] = {}
    takes_paths = False
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            words += action.choices
            for command in action.choices.values():
                options |= {option.names: option for option in words_of("", "", command).options}
        elif action.option_strings:
            names = tuple(action.option_strings)
            choices = tuple(map(str, action.choices or ()))
            options[names] = Option(names, action.help or "", action.nargs != 0, choices, action.metavar in _PATHS)
        else:
            words += map(str, action.choices or ())
            takes_paths = takes_paths or action.metavar in _PATHS
    return VerbWords(name, help, tuple(words), tuple(options.values()), takes_paths)


def bash(verbs: Iterable[VerbWords]) -> str:
    """A function of bash. Where it proposes nothing, as for the value of an option, bash proposes files."""
    verbs = list(verbs)
    cases = "\n".join(
        f"        {verb.name}) words={_quoted(' '.join(_bash_words(verb)))} values={_quoted(_bash_values(verb))} ;;"
        for verb in verbs
    )
    return f"""\
_lakelog() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" last="${{COMP_WORDS[COMP_CWORD-1]}}" words="" values="" value
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "{" ".join(verb.name for verb in verbs)} --help --version" -- "$current"))
        return
    fi
    case "${{COMP_WORDS[1]}}" in
{cases}
    esac
    for value in $values; do
        if [ "${{value%%=*}}" = "$last" ]; then
            value="${{value#*=}}"
            COMPREPLY=($(compgen -W "${{value//,/ }}" -- "$current"))
            return
        fi
    done
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _lakelog lakelog
"""


def zsh(verbs: Iterable[VerbWords]) -> str:
    """A completion function of zsh, for a folder of `fpath`."""
    verbs = list(verbs)
    listed = "\n".join(f"        {_quoted(f'{verb.name}:{verb.help}')}" for verb in verbs)
    cases = "\n".join(f"        {verb.name}) _arguments {' '.join(_zsh_specs(verb))} ;;" for verb in verbs)
    return f"""\
#compdef lakelog
_lakelog() {{
    local -a verbs=(
{listed}
    )
    if (( CURRENT == 2 )); then
        _describe verb verbs
        return
    fi
    local verb=$words[2]
    shift words
    (( CURRENT-- ))
    case $verb in
{cases}
    esac
}}
if [ "$funcstack[1]" = _lakelog ]; then _lakelog "$@"; else compdef _lakelog lakelog; fi
"""


def fish(verbs: Iterable[VerbWords]) -> str:
    """Lines of `complete` for fish."""
    lines = ["complete -c lakelog -f"]
    for verb in verbs:
        lines.append(f"complete -c lakelog -n __fish_use_subcommand -a {verb.name} -d {_quoted(verb.help)}")
        begin = f"complete -c lakelog -n '__fish_seen_subcommand_from {verb.name}'"
        if verb.words:
            lines.append(f"{begin} -a '{' '.join(verb.words)}'")
        if verb.takes_paths:
            lines.append(f"{begin} -F")
        lines += [f"{begin} {_fish_option(option)}" for option in verb.options]
    return "\n".join(lines) + "\n"


SHELLS: Mapping[str, Callable[[Iterable[VerbWords]], str]] = {"bash": bash, "zsh": zsh, "fish": fish}


def _bash_words(verb: VerbWords) -> list[str]:
    return [*verb.words, *(name for option in verb.options for name in option.names)]


def _bash_values(verb: VerbWords) -> str:
    """`--option=a,b` for each option that takes a value."""
    found = [option for option in verb.options if option.has_value]
    return " ".join(f"{name}={','.join(option.choices)}" for option in found for name in option.names)


def _zsh_specs(verb: VerbWords) -> list[str]:
    specs = []
    for option in verb.options:
        help = "".join(f"\\{letter}" if letter in "[]:\\" else letter for letter in _plain(option.help))
        values = f"({' '.join(option.choices)})" if option.choices else "_files" if option.is_path else ""
        specs += [f"{name}[{help}]{f':value:{values}' if option.has_value else ''}" for name in option.names]
    if verb.words:
        specs.append(f"1:word:({' '.join(verb.words)})")
    return [_quoted(spec) for spec in [*specs, *(["*:file:_files"] if verb.takes_paths else [])]]


def _fish_option(option: Option) -> str:
    names = [f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names]
    values = f" -a '{' '.join(option.choices)}'" if option.choices else " -F" if option.is_path else ""
    return f"{' '.join(names)}{' -r' if option.has_value else ''}{values} -d {_quoted(_plain(option.help))}"


def _plain(help: str) -> str:
    """Help as argparse shows it: a doubled percent sign is one."""
    return help.replace("%%", "%")


def _quoted(text: str) -> str:
    """In single quotes. An apostrophe is left out: zsh and fish escape it in different ways."""
    return "'" + text.replace("'", "") + "'"
