"""A theme of the admin that shares nothing with Django's but the names of its template blocks."""
