"""One module a table of the run file: its rows, how they are written, how they are read."""
