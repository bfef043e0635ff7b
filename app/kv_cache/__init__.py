"""The KV cache page."""
