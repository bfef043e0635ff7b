"""A directory of runs, and what is kept beside them: cards, labels, trash."""
