"""Parts of the Probe page."""
