"""What operators type: thin commands over functions that the admin and tests call too.

`row_limits` changes one row for ``slots_limit``, `limit_file` reads and applies the file of its ``--tenant-file``;
``commands/_table`` aligns text, ``commands/_output`` writes it for as long as somebody reads.
"""
