"""What pages and reports read of a run, put together from its tables."""
