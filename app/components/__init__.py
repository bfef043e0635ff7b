"""Parts of several pages, with their JavaScript beside their Python."""
