"""Describe the server's interface: OpenAPI for programs, and an HTML page for people.

The page is written here and loads nothing: the usual OpenAPI viewers are loaded from other hosts.
"""

import json
from html import escape
from typing import Any

ABOUT = (
    "What models say about a picture and where they look. Pictures are sent as they are (JPEG, "
    "PNG, WebP, ...), as the body of a request; nothing is kept of them. Errors are JSON with a "
    "sentence in 'detail'."
)
MAP = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "description": "the stage, counted from 1"},
        "labels": {"type": "array", "items": {"type": "string"}, "description": "of each map"},
        "shape": {
            "type": "array", "items": {"type": "integer"}, "description": "maps, height, width",
        },
        "maps": {
            "type": "string", "format": "byte",
            "description": "bytes in base64, map after map, row after row, each map scaled from "
            "its least (0) to its most (255); of evidence 128 is nothing, and all share a scale",
        },
    },
}  # fmt: skip
GUESS = {
    "type": "object",
    "properties": {"label": {"type": "string"}, "share": {"type": "number"}},
}
BOX = {
    "type": "object",
    "properties": {
        "box": {
            "type": "array", "items": {"type": "number"},
            "description": "x0 y0 x1 y1 in the picture's pixels",
        },
        "label": {"type": "string"},
        "score": {"type": "number"},
    },
}  # fmt: skip
FACTS = {
    "type": "object",
    "description": "a model; one that is not loaded yet has its name alone",
    "properties": {
        "name": {"type": "string"}, "loaded": {"type": "boolean"}, "trained": {"type": "boolean"},
        "architecture": {"type": "string"}, "task": {"type": "string"},
        "family": {"type": "string", "description": "whose attention it has"},
        "classes": {"type": "integer"}, "parameters": {"type": "integer"},
        "macs": {"type": "integer", "description": "multiply-adds of one image, 0 if unknown"},
        "side": {"type": "integer", "description": "short side of what it is shown, in pixels"},
        "milliseconds": {"type": "number", "description": "one image on this machine"},
        "evidence": {"type": "boolean", "description": "whether evidence can be asked for"},
    },
}  # fmt: skip
LOOKED = {
    "type": "object",
    "properties": {
        "model": FACTS,
        "guesses": {"type": "array", "items": GUESS, "nullable": True,
                    "description": "the likeliest classes; null with classes=0"},
        "boxes": {"type": "array", "items": BOX, "nullable": True, "description": "of a detector"},
        "shares": {"type": "object", "nullable": True,
                   "description": "of a segmenter: the classes and their shares of the pixels"},
        "drawn": {"type": "string", "format": "byte", "nullable": True,
                  "description": "boxes, regions or a new picture, drawn: JPEG in base64"},
        "what": {"type": "string", "description": "what the maps say"},
        "note": {"type": "string"},
        "at": {"type": "array", "items": {"type": "number"}, "nullable": True,
               "description": "the place that looks: row and column, in 0..1"},
        "stages": {"type": "array", "items": MAP},
        "evidence": {**MAP, "nullable": True},
    },
}  # fmt: skip


def _json(about: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": about, "content": {"application/json": {"schema": schema}}}


REFUSED = {
    400: "the page is reached by a name that it does not have", 403: "another site's page asks",
    404: "no such model", 413: "too many bytes, or a picture that takes too much memory",
    415: "no picture that can be read", 422: "a number is wanted",
    500: "the model failed on this picture", 503: "too many pictures at a time",
}  # fmt: skip
ERROR = {"type": "object", "properties": {"detail": {"type": "string"}}}
PARAMETERS = {
    "model": "which model, by its place in /models",
    "y": "row of the place that looks, in 0..1; with x, for QnA and SASA",
    "x": "column of it, in 0..1",
    "classes": "0 leaves out classes, boxes and regions",
    "evidence": "1 adds what spoke for the likeliest classes",
}

MODELS: dict[str, Any] = {
    "summary": "The models that can be asked",
    "responses": {200: _json("one for each", {"type": "array", "items": FACTS})},
}
SAMPLES: dict[str, Any] = {
    "summary": "Names of pictures to begin with",
    "responses": {200: _json("names", {"type": "array", "items": {"type": "string"}})},
}
SAMPLE: dict[str, Any] = {
    "summary": "One of these pictures, a JPEG",
    "responses": {404: _json("no such picture", ERROR)},
}
LOOK: dict[str, Any] = {
    "summary": "What a model says about a picture, and where it looks",
    "responses": {
        200: _json("what it says", LOOKED),
        **{code: _json(why, ERROR) for code, why in REFUSED.items()},
    },
    "openapi_extra": {
        "requestBody": {
            "required": True, "description": "the picture's file",
            "content": {"image/*": {"schema": {"type": "string", "format": "binary"}}},
        }
    },
}  # fmt: skip

STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1f; --soft: #5b5b66; --paper: #fbfbfd; --line: #d9d9e3 }
@media (prefers-color-scheme: dark) { :root { --ink: #ececf1; --soft: #a9a9b6; --paper: #131317;
  --line: #3a3a45 } }
body { max-width: 56rem; margin: 0 auto; padding: 1rem; font: 16px/1.5 system-ui, sans-serif;
  color: var(--ink); background: var(--paper); overflow-wrap: anywhere }
h2 { border-top: 1px solid var(--line); padding-top: 1rem; font-size: 1.1rem }
td, th { text-align: left; vertical-align: top; padding: .15rem 1rem .15rem 0 }
pre { overflow: auto; border: 1px solid var(--line); border-radius: 8px; padding: .7rem }
.soft { color: var(--soft) }
"""  # noqa: E501


def page(schema: dict[str, Any]) -> str:
    """The interface for people, as one page that loads nothing."""
    parts = [f"<h1>{escape(schema['info']['title'])} {escape(schema['info']['version'])}</h1>"]
    parts.append(f"<p>{escape(ABOUT)} For programs: <a href='/openapi.json'>openapi.json</a>.</p>")
    example = "curl --data-binary @cat.jpg 'http://localhost:8000/look?model=0'"
    parts.append(f"<pre>{escape(example)}</pre>")
    for path, methods in schema["paths"].items():
        for method, about in methods.items():
            parts += _operation(method, path, about)
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>saccade: interface"
        "</title><meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<link rel='icon' href='data:,'><style>{STYLE}</style></head><body>"
        + "\n".join(parts)
        + "</body></html>"
    )


def _operation(method: str, path: str, about: dict[str, Any]) -> list[str]:
    parts = [f"<h2><code>{method.upper()} {escape(path)}</code></h2><p>{escape(about['summary'])}"]
    if "requestBody" in about:
        parts.append(f"<p>Body: {escape(about['requestBody']['description'])}.</p>")
    rows = [
        (one["name"], one["schema"].get("default", ""), PARAMETERS.get(one["name"], ""))
        for one in about.get("parameters", ())
    ]
    if rows:
        parts.append(_table(("parameter", "default", ""), rows))
    codes = [(code, one["description"]) for code, one in about["responses"].items()]
    parts.append(_table(("answer", ""), codes))
    for media in about["responses"].get("200", {}).get("content", {}).values():
        if media.get("schema", {}).get("properties") or media.get("schema", {}).get("items"):
            text = json.dumps(_example(media["schema"]), indent=1)
            parts.append(f"<p class='soft'>as JSON:</p><pre>{escape(text)}</pre>")
    return parts


def _table(heads: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    top = "".join(f"<th>{escape(head)}</th>" for head in heads)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><tr>{top}</tr>{body}</table>"


def _example(schema: dict[str, Any]) -> Any:
    """What each part of an answer is, in words."""
    if "properties" in schema:
        return {name: _example(part) for name, part in schema["properties"].items()}
    if schema.get("type") == "array":
        return [_example(schema.get("items", {}))] + (
            [schema["description"]] if "description" in schema else []
        )
    return schema.get("description", schema.get("type", ""))
