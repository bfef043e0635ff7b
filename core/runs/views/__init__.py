"""Views of a run that pages and reports read, put together from its tables."""
