"""What a server that strangers can reach needs to know: passwords, tokens, sessions, failed attempts, and when it must
not start.
"""
