"""The documentation as a site: `python -m tools.site`, then open site/index.html.

    python -m tools.site --out site       build; warnings are errors
    python -m tools.site --serve 8080     build, and show it on this machine

Its pages are docs/*.md, the executed notebooks of examples/notebooks, and an API reference that is
made of the docstrings. Needs the docs extra: `pip install -e ".[docs]"`. The site loads nothing
from elsewhere.
"""

import argparse
import functools
import http.server
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if not __package__:  # python tools/site.py
    sys.path[0] = str(ROOT)
BESIDE = ("CONTRIBUTING.md", "CHANGELOG.md", "LICENSE")  # pages that docs link to
TOPICS = {
    "Begin": ("start", "own-images", "faq", "commands"),
    "Tasks": ("training", "detection", "detection-data", "dense", "segmentation",
              "super-resolution"),
    "Look": ("see", "page", "gallery"),
    "Use": ("python", "timm", "ship", "operators"),
    "Build on it": ("own-layer", "layers", "graft"),
    "Papers and figures": ("equations", "papers", "records", "speed", "reliability", "versions"),
}  # fmt: skip
NOTEBOOKS = (
    "first_look", "solar_cells", "clothes", "beside_timm", "own_layer",
    "find_things", "every_pixel", "more_pixels", "ship_it",
)  # fmt: skip
CONF = """
project = "saccade"
extensions = ["myst_nb"]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3
nb_execution_mode = "off"
nb_merge_streams = True
html_theme = "furo"
html_title = "saccade"
html_static_path = []
html_show_sourcelink = False
html_copy_source = False
exclude_patterns = ["docs/README.md"]
suppress_warnings = ["misc.highlighting_failure", "myst.header", "mystnb.unknown_mime_type",
                     "toc.not_included", "myst.xref_missing"]
pygments_style = "friendly"
pygments_dark_style = "monokai"
"""
HOME = """# saccade

Attention in a vision backbone at the price of a convolution: SASA, QnA and LinGlo, whole, in
PyTorch.

```python
import saccade
from saccade import samples

model = saccade.load("linglo_nano")
answer = model.predict(samples.path("cat"))  # names and scores
maps = model.attention(samples.path("cat"))  # where each head looks
run = saccade.train("quick")                 # a first training, on real digits
```

**First time?** [Five minutes](docs/start.md). **Your own images?** [This page](docs/own-images.md).
**A timm user?** [Beside timm](docs/timm.md).
**An idea for a layer?** [Forty lines](docs/own-layer.md).

"""


def pages_of(topic: str) -> list[str]:
    """The pages of a topic that there are."""
    return [name for name in TOPICS[topic] if (ROOT / "docs" / f"{name}.md").is_file()]


def rest() -> list[str]:
    """Pages that no topic names."""
    named = {name for names in TOPICS.values() for name in names}
    return sorted({path.stem for path in (ROOT / "docs").glob("*.md")} - named)


def home() -> str:
    """The first page, with the contents of all."""
    trees = [(topic, [f"docs/{name}" for name in pages_of(topic)]) for topic in TOPICS]
    trees.append(("Notebooks", [f"notebooks/{name}" for name in NOTEBOOKS]))
    trees.append(("Reference", ["api/index", *[f"docs/{name}" for name in rest()],
                                "CONTRIBUTING", "CHANGELOG"]))  # fmt: skip
    return HOME + "\n".join(
        f"```{{toctree}}\n:caption: {topic}\n:maxdepth: 1\n\n" + "\n".join(pages) + "\n```\n"
        for topic, pages in trees
    )


def gather(folder: Path) -> None:
    """All sources of the site in one folder, laid out as links between them expect."""
    from tools import reference

    shutil.copytree(ROOT / "docs", folder / "docs")
    for name in BESIDE:
        shutil.copy(ROOT / name, folder / name)
    (folder / "notebooks").mkdir()
    for name in NOTEBOOKS:
        shutil.copy(ROOT / "examples" / "notebooks" / f"{name}.ipynb", folder / "notebooks")
    reference.write(folder / "api")
    (folder / "index.md").write_text(home())
    (folder / "conf.py").write_text(CONF)


def build(out: Path) -> None:
    """The whole site into a folder; anything that Sphinx warns of raises."""
    from sphinx.application import Sphinx

    with tempfile.TemporaryDirectory() as place:
        source = Path(place) / "source"
        source.mkdir()
        gather(source)
        app = Sphinx(
            str(source), str(source), str(out), str(Path(place) / "trees"), "html",
            warningiserror=True, exception_on_warning=False, status=None,
        )  # fmt: skip
        app.build()
        if app.statuscode:
            raise SystemExit("site: Sphinx warned, see above")


def serve(out: Path, port: int) -> None:
    """The site on this machine alone."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(out))
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        print(f"open http://localhost:{server.server_address[1]} (Ctrl-C ends it)")
        server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "site")
    parser.add_argument("--serve", type=int, metavar="PORT")
    options = parser.parse_args()
    build(options.out)
    print(f"written: {options.out / 'index.html'}")
    if options.serve is not None:
        serve(options.out, options.serve)


if __name__ == "__main__":
    main()
