"""Captures: prompts down the paths of a model into a run, what that costs, and how fast a path is."""
