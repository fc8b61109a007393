"""The papers' tables at small scale: grids of settings that are trained, counted and compared."""
