"""Security of a server that strangers can reach: passwords, tokens, sessions, failed attempts, and when it must not
start.
"""
