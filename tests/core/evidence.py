"""Evidence as tests look at it."""


def rows_of(evidence, key):
    """The rows of a check, or of a group of checks."""
    return [row for row in evidence if key in (row.check, row.group)]
