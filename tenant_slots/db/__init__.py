"""The database below the models: its clock, transactions, Django's statements compiled once per process, and what to
say when our tables are missing.
"""
