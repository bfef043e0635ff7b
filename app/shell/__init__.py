"""What every page stands in: selection, address, navigation, jobs, wording, exports, the cached store."""
