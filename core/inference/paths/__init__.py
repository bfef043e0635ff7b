"""Paths: ways to compute the same logits. Their grammar, bases, modifiers, and the hooks that watch them."""
