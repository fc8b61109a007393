"""`python -m saccade`, which is what torchrun starts."""

from saccade.cli import main

main()
