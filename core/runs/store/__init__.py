"""A directory of runs with their cards, labels and deletions."""
