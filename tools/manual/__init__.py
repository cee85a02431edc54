"""Writes the parts of the manual that are generated from the code. Tests fail when they are out of date."""
