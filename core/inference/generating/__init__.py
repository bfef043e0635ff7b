"""Free continuations of prompts, and the search for prompts on which two paths part."""
