"""Frame of every page: selection, address, navigation, jobs, wording, exports, the cached store."""
