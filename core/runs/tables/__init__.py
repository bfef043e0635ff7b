"""Tables of the run file, one module each: its rows, how they are written, how they are read."""
