"""A database that says it is none that we know: SQLite under another name."""
