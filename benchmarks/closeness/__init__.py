"""Tests of closeness on trial: sound kernels and planted faults of nine operations."""
