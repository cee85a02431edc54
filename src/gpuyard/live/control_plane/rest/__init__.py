"""The scheduler over HTTP: one table of routes (routes.py), one door in front of it, one file for each group of verbs."""
