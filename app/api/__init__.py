"""The HTTP API, beside the pages in the same process; docs/api.md shows it with curl."""
