"""Commands of sweeps: a plan of many captures, and the worker that computes what it lacks."""
