"""Ready-made pieces for other packages."""
