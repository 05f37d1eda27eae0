"""How close the default answer comes to the least error that is possible, by world and size."""
