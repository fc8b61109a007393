"""What a run leaves for people: curves, tables, pages, and several runs side by side."""
