"""Alerts: conditions of the cluster that somebody should know about, and messages about them to the outside.

views, telemetry ─► observer ─► samples ─► rules (pure) ─► alerts ─┬─► store       they survive a restart
                                                                   └─► notifier ─► receivers: webhook, e-mail
"""
