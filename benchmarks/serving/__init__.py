"""The dashboard as its viewers meet it: first paints, visits, many viewers at once."""
