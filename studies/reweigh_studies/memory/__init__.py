"""The study of memory: how much an estimate should remember, and what its rule makes of a log."""
