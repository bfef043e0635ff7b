"""A run or a comparison for elsewhere: JSON, Markdown for an issue, the gate of a CI."""
