"""Parts of several pages, with their JavaScript next to their Python."""
