"""The database below the models: its clock, Django's statements compiled once per process, and what to say
when our tables are missing.
"""
