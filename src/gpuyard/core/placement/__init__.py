"""Placement: rules (requirements), scores (preferences), and the index that answers both without a scan.

The unit of choice is a *device group*: the GPUs of one model in one node. Most nodes have one device group; a desktop
with two kinds of GPUs has two. Every device group has a number, and a set of device groups is a Python integer with one
bit for each: "which nodes have this model, carry these labels, and have four GPUs free" is three machine-speed ANDs, at
25 nodes and at 12,500.

    resources ──► shape ──rules──► the device groups that could ever hold it     (kept until nodes change)
                    │
                    └──choose──► by free GPUs, in the order of the score ──► placement, or why not
"""
