"""A directory of runs, and what is stored beside them: cards, labels, deletions."""
