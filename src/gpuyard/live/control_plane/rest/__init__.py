"""The REST API: one table of routes (routes.py), one guard in front of it, one file for each group of endpoints."""
