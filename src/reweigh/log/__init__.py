"""What was logged: reading, checking and describing episodes."""
