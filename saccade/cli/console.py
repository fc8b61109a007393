"""Where the command line prints."""

from rich.console import Console

console = Console()
