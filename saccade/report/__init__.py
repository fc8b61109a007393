"""Reports of runs: curves, tables, HTML pages, and comparisons of several runs."""
