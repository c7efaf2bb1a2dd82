"""A project's app whose tables refer to our jobs. Only the tests that need it install it."""
