"""Notebooks from scripts: `python -m tools.notebooks [NAME ...]` runs them, with what they show.

A script of examples/notebooks is in cells, begun by `# %%` and `# %% [markdown]`. It runs as it is
(`python examples/notebooks/first_look.py`); this writes NAME.ipynb beside it, executed. `CLOTHING`
names the folder of clothes.ipynb.
"""

import base64
import io
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parents[1] / "examples" / "notebooks"
WIDEST = 720  # pixels of a picture that is kept
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def cells(script: str) -> list[tuple[str, str]]:
    """The kind (code, markdown, or code whose pictures are not kept) and the text of each cell."""
    parts = re.split(r"^# %%(.*)\n", script, flags=re.MULTILINE)[1:]
    found = []
    for mark, body in zip(parts[::2], parts[1::2], strict=True):
        text = body.strip("\n")
        if "[markdown]" in mark:
            found.append(("markdown", re.sub(r"^# ?", "", text, flags=re.MULTILINE)))
        else:
            kind = "unkept" if "pictures not kept" in mark else "code"
            found.append((kind, text))
    return found


def notebook(script: str):
    """The script as a notebook that was not run yet."""
    import nbformat.v4 as nb

    make = {"code": nb.new_code_cell, "markdown": nb.new_markdown_cell}
    whole = nb.new_notebook(metadata={"kernelspec": KERNEL})
    for i, (kind, text) in enumerate(cells(script)):
        cell = make["markdown" if kind == "markdown" else "code"](text)
        cell.metadata["tags"] = ["unkept"] if kind == "unkept" else []
        cell["id"] = f"cell-{i}"
        whole.cells.append(cell)
    return whole


def execute(path: Path) -> Path:
    """Run a script's notebook and write it beside the script."""
    import nbformat
    from nbclient import NotebookClient

    whole = notebook(path.read_text())
    NotebookClient(whole, timeout=3600, kernel_name="python3").execute()
    for cell in whole.cells:
        cell.get("metadata", {}).pop("execution", None)
        if cell.cell_type == "code":
            heard = [output for output in cell.outputs if output.get("name") != "stderr"]
            pictures = "unkept" not in cell.metadata.get("tags", [])
            cell.outputs = [_lighter(output, pictures) for output in heard]
    whole.metadata = {"kernelspec": KERNEL}
    target = path.with_suffix(".ipynb")
    nbformat.write(whole, target)
    return target


def _lighter(output, pictures=True):
    """Pictures as JPEG and not too wide; of several forms of one thing the first that is drawn."""
    data = output.get("data", {})
    if not pictures:
        for kind in [kind for kind in data if kind.startswith("image/")]:
            del data[kind]
    if "image/png" in data:
        data["image/jpeg"] = _small(data.pop("image/png"))
        data.pop("text/html", None)
    html = data.get("text/html")
    if html:
        data["text/html"] = re.sub(
            r"data:image/png;base64,([A-Za-z0-9+/=]+)",
            lambda match: f"data:image/jpeg;base64,{_small(match[1])}", html,
        )  # fmt: skip
    if "text/plain" in data:
        data["text/plain"] = re.sub(r"(/[\w.-]+)+/(tmp\w+)", r"\2", data["text/plain"])
    for name in ("text/html", "text"):
        if isinstance(data.get(name), str):
            data[name] = re.sub(r"(/[\w.-]+)+/(tmp\w+)", r"\2", data[name])
    if isinstance(output.get("text"), str):
        output["text"] = re.sub(r"(/[\w.-]+)+/(tmp\w+)", r"\2", output["text"])
    return output


def _small(png: str) -> str:
    from PIL import Image

    picture = Image.open(io.BytesIO(base64.b64decode(png)))
    ground = Image.new("RGB", picture.size, "white")
    ground.paste(picture, mask=picture.getchannel("A") if picture.mode == "RGBA" else None)
    ground.thumbnail((WIDEST, 10 * WIDEST))
    stream = io.BytesIO()
    ground.save(stream, "JPEG", quality=72, optimize=True)
    return base64.b64encode(stream.getvalue()).decode()


def main(names: list[str]) -> None:
    for path in sorted(HERE.glob("*.py")):
        if not names or path.stem in names:
            target = execute(path)
            print(f"{target.name}: {target.stat().st_size / 1000:.0f} kB", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
