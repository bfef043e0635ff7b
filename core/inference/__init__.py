"""The torch side: models, paths, capture. Empty on purpose: torch loads with the first module taken from here, not before."""
