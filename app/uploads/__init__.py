"""Files on their way in: streamed to the store's disk, resumed after a break, looked at, saved as runs."""
