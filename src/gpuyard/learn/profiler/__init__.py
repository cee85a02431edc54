"""HOW IT BEHAVED: PyTorch models measured on a real GPU, one row a configuration; peaks of a GPU; any command, watched.

    zoo (what can be measured) ─► sweep (which configurations) ─► measure (time, memory, power) ─► rows (a CSV file)

What a step costs on paper (FLOPs, bytes) is counted by `predictor.flops`, on no device at all. torch loads only when
something is measured.
"""
