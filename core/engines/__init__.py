"""Engines beside transformers: described, found, and run in a process and environment of their own."""
