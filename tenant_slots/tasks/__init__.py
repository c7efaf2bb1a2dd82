"""What a task is: a decorated function with its path, options and signature, the registry, and what its calls may hold.

A task knows nothing of how it is enqueued or run.
"""
