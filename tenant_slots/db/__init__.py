"""The database below the models: its clock, and Django's statements compiled once per process."""
