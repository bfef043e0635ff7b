"""The HTTP API, beside the pages in the same process; docs/reference/api.md shows it with curl."""
