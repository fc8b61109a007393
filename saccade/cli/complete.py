"""What a shell may complete: commands, options, names of models and recipes.

The shell's script calls `saccade --complete WORD ...` with the words so far, the last of them
unfinished, and gets one candidate a line. Where nothing comes back, it completes file names.
"""

import dataclasses
from pathlib import Path
from typing import Literal

from saccade.cli.command import Option, options_of
from saccade.cli.commands import COMMANDS

SCRIPTS = {
    "bash": """\
_saccade() {
    local IFS=$'\\n' word="${COMP_WORDS[COMP_CWORD]}"
    COMPREPLY=($("$1" --complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
    [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *= ]] && compopt -o nospace
    [[ ${#COMPREPLY[@]} -eq 0 ]] && COMPREPLY=($(compgen -f -- "$word")) && compopt -o filenames
}
complete -F _saccade saccade
""",
    "zsh": """\
#compdef saccade
_saccade() {
    local -a names
    names=("${(@f)$("${words[1]}" --complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -n "${names[1]}" ]]; then
        local -a glue
        [[ "${names[1]}" == *= ]] && glue=(-S '')
        compadd -Q "${glue[@]}" -- "${names[@]}"
    else
        _files
    fi
}
if [[ "${funcstack[1]}" == "_saccade" ]]; then _saccade "$@"; else compdef _saccade saccade; fi
""",
    "fish": """\
function __saccade_complete
    set -l words (commandline -opc) (commandline -ct)
    set -l names ($words[1] --complete $words[2..-1] 2>/dev/null)
    if test (count $names) -gt 0
        printf '%s\\n' $names
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c saccade -f -a '(__saccade_complete)'
""",
}


def completion(shell: Literal["bash", "zsh", "fish"]) -> None:
    """Print the script by which a shell completes commands, options, models and recipes.

    Save it where your shell looks for such scripts, once; a new shell then completes.

    Examples:
        saccade completion bash > ~/.local/share/bash-completion/completions/saccade
        saccade completion zsh > "${fpath[1]}/_saccade"
        saccade completion fish > ~/.config/fish/completions/saccade.fish

    Args:
        shell: your shell
    """
    print(SCRIPTS[shell], end="")


def candidates(words: list[str]) -> list[str]:
    """What the last word may become; the words before it are complete."""
    *before, last = words or [""]
    if not before:
        return _beginning([*COMMANDS, "--help", "--version"] if last else [*COMMANDS], last)
    if before[0] not in COMMANDS:
        return []
    options = options_of(COMMANDS[before[0]].function)
    if last.startswith("-") and last != "-":
        flags = [option.flag for option in options if not option.plain]
        return _beginning([*flags, "--help"], last)
    option = _expected(options, before[1:])
    return [] if option is None else _beginning(_values(option, before, last), last)


def _beginning(names: list[str], start: str) -> list[str]:
    return [name for name in names if name.startswith(start)]


def _expected(options: list[Option], before: list[str]) -> Option | None:
    """The option whose value comes next."""
    flags = {option.flag: option for option in options if not option.plain}
    open_, count = None, 0
    for word in before:
        if word.startswith("-"):
            option = flags.get(word)
            open_ = None if option is None or option.switch else option
        elif open_ is None:
            count += 1
        elif not open_.many:
            open_ = None
    plain = [option for option in options if option.plain]
    if open_ is not None:
        return open_
    if count < len(plain):
        return plain[count]
    return plain[-1] if plain and plain[-1].many else None


def _values(option: Option, before: list[str], last: str) -> list[str]:
    if option.choices or "|" in option.value.word:
        return list(option.choices) or option.value.word.split("|")
    kind = option.value.completes
    if kind == "commands":
        return list(COMMANDS)
    if kind == "models":
        from saccade.models.counts import counts, is_table_row

        runs = sorted(str(file.parent) for file in Path("runs").glob("*/recipe.json"))
        rows = "_table" in last
        return [*runs, *(name for name in counts() if rows or not is_table_row(name))]
    if kind in ("recipes", "settings"):
        from saccade.recipes import book

        if kind == "recipes":
            return list(book.RECIPES)
        recipe = book.RECIPES.get(before[1]) if len(before) > 1 else None
        return [] if recipe is None else _settings(recipe)
    return []


def _settings(recipe: object) -> list[str]:
    """All that --set may change: optim.lr=, ..."""
    groups = {field.name: getattr(recipe, field.name) for field in dataclasses.fields(recipe)}  # ty: ignore
    return [
        f"{group}.{field.name}="
        for group, value in groups.items()
        if dataclasses.is_dataclass(value)
        for field in dataclasses.fields(value)
    ]
