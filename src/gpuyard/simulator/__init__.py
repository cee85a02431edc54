"""What if: the live engine under a virtual clock, on nodes that only exist in memory."""
