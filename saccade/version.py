"""The version, on its own so that the build can read it without importing torch."""

__version__ = "0.1.0"

FORMATS = {"model": 1, "checkpoint": 2, "export": 1}
"""What the files of this version are written as; it reads these and all before them. A number rises
only where an earlier version would misunderstand the file (docs/versions.md)."""


def check_format(kind: str, number: object, source: str) -> None:
    """Refuse a file of a later version; `number` is None in files from before there were any."""
    newest = FORMATS[kind]
    if number is not None and (type(number) is not int or not 0 <= number <= newest):
        raise ValueError(
            f"{source!r} has format {number!r}, of a later saccade; this one, {__version__}, reads "
            f"{kind} files up to {newest}: update saccade"
        )
