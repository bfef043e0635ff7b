"""Verdicts on pairs by what their arrays and controls show, without running a model."""
