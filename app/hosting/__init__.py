"""Serving others: who is asking, what they may do, and the gate in front of everything."""
