"""Studies of reweigh: coverage of its intervals, power of its gates, the paper's theorems."""
