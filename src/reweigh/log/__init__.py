"""Logged episodes: reading, checking and describing them."""
