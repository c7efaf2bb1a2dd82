"""What operators type: thin commands over functions that the admin and tests call too.

`limit_file` reads and applies the file of ``slots_limit --tenant-file``; ``commands/_table`` aligns text.
"""
