"""The API reference: a page of Markdown for each public module, from its docstrings and signatures.

Docstrings here are plain text: what is indented is an equation or an example and becomes a block of
code, `Args`, `Returns` and `Yields` become lists, the rest is prose.
"""

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

TOPICS: dict[str, tuple[str, ...]] = {
    "The public face": ("saccade", "saccade.models.face", "saccade.face.register",
                        "saccade.face.training", "saccade.face.attention", "saccade.tasks.answers"),
    "Layers": ("saccade.layers", "saccade.layers.sasa", "saccade.layers.sasa_stem",
               "saccade.layers.qna", "saccade.layers.linglo", "saccade.layers.position",
               "saccade.layers.window", "saccade.layers.dot", "saccade.layers.block",
               "saccade.layers.stem"),
    "Operators": ("saccade.ops.operator", "saccade.ops.sasa", "saccade.ops.qna",
                  "saccade.ops.linglo", "saccade.ops.feed", "saccade.ops.window"),
    "Models": ("saccade.models.backbone", "saccade.models.zoo", "saccade.models.saved",
               "saccade.models.sasa", "saccade.models.qna", "saccade.models.linglo",
               "saccade.models.retinanet", "saccade.models.detr", "saccade.models.semantic_fpn",
               "saccade.models.autoencoder", "saccade.models.upscaler", "saccade.models.features"),
    "Tasks": ("saccade.tasks", "saccade.tasks.definition", "saccade.tasks.task"),
    "Recipes": ("saccade.recipes.recipe", "saccade.recipes.augment", "saccade.recipes.classify",
                "saccade.recipes.detect", "saccade.recipes.segment", "saccade.recipes.upscale"),
    "Training": ("saccade.engine.session", "saccade.engine.run"),
    "Pictures and maps": ("saccade.view.maps", "saccade.view.sheet", "saccade.data.picture",
                          "saccade.samples"),
    "Shipping": ("saccade.export",),
}  # fmt: skip
SECTION = re.compile(r"^(Args|Returns|Yields|Raises):$")


def pages() -> dict[str, str]:
    """Each module's page by its file name, and `index.md`."""
    texts, index = {}, ["# API reference", "", "From the docstrings of this version.", ""]
    for topic, names in TOPICS.items():
        index += [f"## {topic}", ""]
        for name in names:
            try:
                module = importlib.import_module(name)
            except ModuleNotFoundError:
                continue
            texts[f"{name}.md"] = page(module)
            first = inspect.cleandoc(module.__doc__ or "").partition("\n")[0]
            index.append(f"- [{name}]({name}.md): {first}")
        index.append("")
    hidden = "\n".join(name.removesuffix(".md") for name in texts)
    index += ["```{toctree}", ":hidden:", "", hidden, "```", ""]
    return {"index.md": "\n".join(index), **texts}


def page(module: Any) -> str:
    """One module: its docstring, its classes and its functions."""
    parts = [f"# {module.__name__}", "", described(module.__doc__ or "")]
    for name, thing in members(module):
        parts += ["", *_entry(name, thing)]
    return "\n".join(parts) + "\n"


def members(module: Any) -> list[tuple[str, Any]]:
    """What of a module others use: all of `__all__`, or what it defines itself without _."""
    listed = getattr(module, "__all__", None)
    if listed is not None and not all(hasattr(module, name) for name in listed):
        listed = None  # timm adds the names of models
    names = listed if listed is not None else [n for n in vars(module) if not n.startswith("_")]
    things = [(name, getattr(module, name)) for name in names if not name.startswith("__")]
    return [
        (name, thing)
        for name, thing in things
        if (inspect.isclass(thing) or inspect.isroutine(thing))
        and (listed is not None or thing.__module__ == module.__name__)
    ]


def _entry(name: str, thing: Any) -> list[str]:
    kind = "class " if inspect.isclass(thing) else ""
    parts = [f"## `{kind}{name}`", "", "```python", f"{kind}{name}{_signature(thing)}", "```", ""]
    parts.append(described(_own_doc(thing)))
    if inspect.isclass(thing):
        for key, method in vars(thing).items():
            function = method.fget if isinstance(method, property) else method
            function = getattr(function, "__func__", function)
            if key.startswith("_") or not inspect.isfunction(function) or not function.__doc__:
                continue
            shape = "" if isinstance(method, property) else _signature(function)
            parts += ["", f"### `{name}.{key}`", "", "```python", f"{key}{shape}", "```", ""]
            parts.append(described(function.__doc__))
    return parts


def _own_doc(thing: Any) -> str:
    """What a class or its constructor says; not what dataclasses make up."""
    text = thing.__doc__ or ""
    if inspect.isclass(thing):
        text = "" if text.startswith(f"{thing.__name__}(") else text
        start = vars(thing).get("__init__")
        if start is not None and start.__doc__ and "Args:" in start.__doc__:
            text = f"{inspect.cleandoc(text)}\n\n{inspect.cleandoc(start.__doc__)}"
    return text


def _signature(thing: Any) -> str:
    """On one line, or a line for each argument."""
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return "(...)"
    text = re.sub(
        r"<(function|class|object)[^>]*>|functools\.partial\([^)]*\)", "...", str(signature)
    )
    text = re.sub(r"\b(?:typing|collections\.abc|torch|jaxtyping|pathlib|numpy)\.", "", text)
    text = re.sub(r"(\w+)\[(?:Tensor|ndarray), ['\"]([^'\"]*)['\"]\]", r'\1[Tensor, "\2"]', text)
    if len(text) <= 88:
        return text
    arguments = [re.sub(r" = <.*", " = ...", str(p)) for p in signature.parameters.values()]
    arguments = [re.sub(r"<[^>]*>", "...", argument) for argument in arguments]
    return "(\n" + "".join(f"    {argument},\n" for argument in arguments) + ")"


def described(docstring: str) -> str:
    """A docstring as Markdown."""
    lines, result, section, fenced = inspect.cleandoc(docstring).splitlines(), [], "", False
    for line in lines:
        title = SECTION.match(line)
        if title:
            result += [*(["```"] if fenced else []), "", f"**{title[1]}**", ""]
            section, fenced = title[1], False
            continue
        if section:
            entry = re.match(r" {4}(\w+): (.*)", line)
            if section in ("Args", "Raises") and entry:
                result.append(f"- `{entry[1]}`: {_prose(entry[2])}")
            elif line.strip():
                indent = "  " if section in ("Args", "Raises") else ""
                result.append(indent + _prose(line.strip()))
            else:
                result.append("")
            continue
        indented = line.startswith("    ") or (fenced and not line.strip())
        if indented and not fenced and line.strip():
            result += ["", "```text"]
            fenced = True
        elif fenced and line.strip() and not line.startswith("    "):
            while result and not result[-1].strip():
                result.pop()
            result += ["```", ""]
            fenced = False
        result.append(line[4:] if fenced else _prose(line))
    if fenced:
        result.append("```")
    return "\n".join(result)


def _prose(line: str) -> str:
    """With stars, angles and brackets as they are, outside of `code`."""
    parts = re.split(r"(`[^`]*`)", line)
    return "".join(
        part if part.startswith("`") else re.sub(r"([*_<>\[\]$|])", r"\\\1", part) for part in parts
    )


def write(folder: Path) -> list[Path]:
    """All pages into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, text in pages().items():
        (folder / name).write_text(text)
        paths.append(folder / name)
    return paths
