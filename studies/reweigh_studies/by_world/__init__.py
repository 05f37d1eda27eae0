"""What studies of many worlds share: plan and runs, the half of a world, page parts, command."""
