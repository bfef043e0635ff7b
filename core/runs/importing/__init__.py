"""Run files from elsewhere: checked, then written anew."""
