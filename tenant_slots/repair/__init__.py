"""Making good whatever a crash, a lost Redis or an operator left behind.

The sweeper and its steps, the findings that the doctor shares with them, and what becomes of a job whose process died.
"""
