"""Level 2: what one kernel takes, from few physical constants fitted to published measurements."""
